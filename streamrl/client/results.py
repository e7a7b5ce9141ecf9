"""The answers of a run, as Python objects."""

import msgspec

from streamrl.types import Version


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """One scored rollout.

    Attributes:
        sample_index: Its place in the group, from 0.
        branch: Its row within a session that forked, from 0.
        text: The sampled text.
        finish_reason: `stop`, `length`, `abort` or `error`.
        reward: None where the reward function failed.
        token_ids: The sampled tokens, the end token included.
        logprobs: One for each token, of the distribution that was sampled.
        version_spans: (start, version) pairs: `version` sampled the tokens from index `start` on.
        replica: The name of the replica that generated it.
    """

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
        """The versions that sampled it, the oldest first."""
        return [version_of(name) for _, name in self.version_spans]


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The finished group of a submitted prompt.

    Attributes:
        key: The key of the prompt.
        group: The number of the group in the run.
        prompt_token_ids: The tokens of the prompt.
        rollouts: `rollout.group_size` rollouts. None where the run has already deleted the rows of a trained group.
    """

    key: str
    group: int
    prompt_token_ids: list[int]
    rollouts: list[Rollout] | None

    @property
    def rewards(self) -> list[float]:
        """The rewards of the rollouts that were scored, in order."""
        return [one.reward for one in self.rollouts or [] if one.reward is not None]


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """A completion that is not trained. Its fields are those of a `Rollout`."""

    text: str
    finish_reason: str
    token_ids: list[int]
    logprobs: list[float]
    version_spans: list[tuple[int, str]]


def version_of(name: str) -> Version:
    """The version of a name.

    Example:
        >>> version_of("0.7")
        Version(incarnation=0, step=7)
    """
    incarnation, step = name.split(".")
    return Version(int(incarnation), int(step))
