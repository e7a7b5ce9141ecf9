"""When `streamrl up --detach` may return: the run is up, and a gateway that it has answers completions. Pure."""

from typing import Any

from streamrl.clock import Clock
from streamrl.config.schema.run import Config

GATEWAY_READY = "gateway_ready"
"""The event that a replica serves the gateway."""
UP_KINDS = frozenset({"warmup", "step", "eval"})
OWNER_PHASES = frozenset({"ray", "actors", "running", "stopping"})
"""What the owner itself goes through; any other phase is told by a part that is up."""


class Awaited:
    """Takes the events of a run. A gateway has `deadlines.start_s` to become ready, from when the run is up.

    Example:
        awaited = Awaited(config, SystemClock())
        for event in client.events():
            if awaited.is_over(event):
                return
    """

    def __init__(self, config: Config, clock: Clock) -> None:
        self._clock = clock
        self._limit_s = config.deadlines.start_s
        self._up_at: float | None = None
        self.is_ready = not config.gateway.enabled
        """Whether there is nothing more to wait for from a gateway."""

    def is_over(self, event: dict[str, Any] | None) -> bool:
        """event: None says that time passed without one."""
        if event is not None:
            self.is_ready = self.is_ready or event["kind"] == GATEWAY_READY
            if self._up_at is None and _is_up(event):
                self._up_at = self._clock.now()
        if self._up_at is None:
            return False
        return self.is_ready or self._clock.now() - self._up_at >= self._limit_s


def _is_up(event: dict[str, Any]) -> bool:
    """Whether the event shows that the parts of the run work, beyond the owner's own steps to start them."""
    name = event.get("name")
    return event["kind"] in UP_KINDS or (event["kind"] == "phase" and name not in OWNER_PHASES)
