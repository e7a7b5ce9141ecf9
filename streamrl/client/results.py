"""What a run answers, as Python objects."""

import msgspec

from streamrl.types import Version


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout. token_ids, logprobs: from the first sampled token on, the end token included; log-probs are those
    of the distribution that was sampled. version_spans: (start, version): which version sampled the tokens from
    `start` on. reward: None where scoring it failed. finish_reason: stop, length, abort or error."""

    sample_index: int
    branch: int
    text: str
    finish_reason: str
    reward: float | None
    token_ids: list[int]
    logprobs: list[float]
    version_spans: list[tuple[int, str]]
    replica: str

    @property
    def versions(self) -> list[Version]:
        """Those that sampled it, the oldest first."""
        return [version_of(name) for _, name in self.version_spans]


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The finished group of a submitted prompt. group: its number in the run. rollouts: None where the run does not
    have its rows any more: the group was trained a while ago."""

    key: str
    group: int
    prompt_token_ids: list[int]
    rollouts: list[Rollout] | None

    @property
    def rewards(self) -> list[float]:
        """Of the rollouts that could be scored."""
        return [one.reward for one in self.rollouts or [] if one.reward is not None]


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """A completion beside the training. Fields as of a `Rollout`."""

    text: str
    finish_reason: str
    token_ids: list[int]
    logprobs: list[float]
    version_spans: list[tuple[int, str]]


def version_of(name: str) -> Version:
    """Of its name, as 0.7."""
    incarnation, step = name.split(".")
    return Version(int(incarnation), int(step))
