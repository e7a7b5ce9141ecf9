"""What a simulation is given, and what it answers. Plain data; times in virtual seconds."""

from dataclasses import dataclass

from streamrl.errors import ConfigError
from streamrl.scheduling.staleness import Late


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationSettings:
    """A fleet and its load.

    slots: groups that one replica runs at once. group_s: mean time of a group, whatever runs beside it.
    heavy_tail: sigma of lognormal group times at that mean; 0 makes all equal. straggler: (number, factor),
    one group that takes `factor` times the mean. step_s: a learner step. update_s: from the end of a step to
    a replica's swap, at the mean, uniform within a half of it. reward_s: from a group's end to its score.
    failure_rate: share of groups that are lost at the end of their run. filter_rate: share that is thrown
    away after the score.
    """

    steps: int = 200
    groups_per_step: int = 8
    max_staleness: int = 2
    late: Late = "wait"
    replicas: int = 2
    slots: int = 8
    group_s: float = 1.0
    heavy_tail: float = 0.0
    straggler: tuple[int, float] | None = None
    step_s: float = 0.5
    update_s: float = 0.05
    reward_s: float = 0.02
    failure_rate: float = 0.0
    filter_rate: float = 0.0

    def __post_init__(self) -> None:
        for key in ("steps", "groups_per_step", "replicas", "slots"):
            _require(getattr(self, key) >= 1, key, getattr(self, key), "1 or more")
        for key in ("heavy_tail", "step_s", "update_s", "reward_s"):
            _require(getattr(self, key) >= 0, key, getattr(self, key), "0 or more")
        for key in ("failure_rate", "filter_rate"):
            _require(0 <= getattr(self, key) < 1, key, getattr(self, key), "0 or more, and under 1")
        _require(self.group_s > 0, "group_s", self.group_s, "more than 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationReport:
    """What happened. Shares are of `elapsed_s`; staleness is in steps, over trained groups.

    deadlocked: nothing was left to happen and the learner was not done. learner_wait_share: time without a
    batch. rollout_utilisation: busy slot time, over all slots. discards: dropped groups by reason.
    """

    steps: int
    elapsed_s: float
    deadlocked: bool
    staleness_max: int
    staleness_mean: float
    learner_wait_share: float
    rollout_utilisation: float
    steps_per_s: float
    issued: int
    trained: int
    discards: dict[str, int]


def _require(holds: bool, key: str, value: object, allowed: str) -> None:
    if not holds:
        raise ConfigError(f"simulation setting {key} is {value!r}; it must be {allowed}")
