"""What a configuration makes of autoscaling: (second, replicas) of what is asked for in a few minutes."""

from pathlib import Path

from streamrl.clock import VirtualClock
from streamrl.config import Config
from streamrl.scheduling.autoscaling import Autoscaler, Seen
from streamrl.scheduling.utilization import Waited


def grown(config: Config, folder: Path) -> list[tuple[float, int]]:
    """From one replica, with seven requests of clients at once."""
    return _asked(config, replicas=1, guests=7, held_back=0.0)


def shrunk(config: Config, folder: Path) -> list[tuple[float, int]]:
    """From three replicas that are given nothing."""
    return _asked(config, replicas=3, guests=0, held_back=1.0)


def _asked(config: Config, *, replicas: int, guests: int, held_back: float) -> list[tuple[float, int]]:
    clock, asked = VirtualClock(), []
    autoscaler = Autoscaler(config.rollout.autoscaling, clock)
    for second in range(400):
        clock.advance(1.0)
        seen = Seen(
            wanted=replicas,
            serving=replicas,
            changing=False,
            step=second,
            waited=Waited(held_back_s=held_back * second),
            guests=guests,
            used=0.0,
        )
        if (decision := autoscaler.decide(seen)) is not None:
            replicas = decision.replicas
            asked.append((clock.now(), replicas))
    return asked
