"""What the reward pool and a child process say to each other, in frames of `streamrl.system.frames`."""

import msgspec

from streamrl.config.schema.run import RewardModelConfig, RewardRule
from streamrl.config.schema.sandbox import SandboxConfig
from streamrl.rewards.base import RewardItem
from streamrl.system.child_process import ChildOrder
from streamrl.types import Score


class ChildSettings(ChildOrder, frozen=True, kw_only=True):
    """What a child is told. model: a reward model beside the rule. sandbox: where programs run."""

    rule: RewardRule
    model: RewardModelConfig = RewardModelConfig()
    sandbox: SandboxConfig = SandboxConfig()


class Ready(msgspec.Struct, frozen=True, array_like=True):
    """A child's first message. `error` is empty, or says why it cannot score."""

    error: str = ""


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """Items to score; `sequence` counts the batches of one child."""

    sequence: int
    items: list[RewardItem]


class Verdicts(msgspec.Struct, frozen=True, array_like=True):
    """The scores of the batch with that `sequence`, in order."""

    sequence: int
    scores: list[Score]
