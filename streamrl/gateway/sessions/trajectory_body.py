"""The body of `/api/trajectories`, and the trajectory that it tells of. Pure.

    {"key": "a-1", "group": "task-17", "reward": 1.0, "turns": [{"prompt_token_ids": [..], "token_ids": [..],
     "logprobs": [..], "version_spans": [[0, "0.3"]]}]}

The fields of a turn are those that the gateway's own answers have under `streamrl`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import xxhash
from pydantic import BaseModel, ConfigDict, Field

from streamrl.conversations.branches import Branch, Turn
from streamrl.gateway.prompts.lines import KEY_LETTERS
from streamrl.gateway.refusal import invalid, json_bytes
from streamrl.gateway.sessions.trajectory import Trajectory, check_branch
from streamrl.types import SamplingParams

Name = Annotated[str, Field(min_length=1, max_length=KEY_LETTERS)]
_TokenId = Annotated[int, Field(strict=True, ge=0, lt=2**31)]
_Start = Annotated[int, Field(strict=True, ge=0, lt=2**31)]
_Finite = Annotated[float, Field(allow_inf_nan=False)]
_VersionText = Annotated[str, Field(pattern=r"^[0-9]{1,9}\.[0-9]{1,18}$")]


class TurnBody(BaseModel):
    """prompt_token_ids: what stands before the sampled tokens; in a later turn, what the environment added to the turn
    before. version_spans: (start, version), `start` counted from the turn's first sampled token."""

    model_config = ConfigDict(extra="forbid")

    prompt_token_ids: list[_TokenId]
    token_ids: list[_TokenId]
    logprobs: list[float]
    version_spans: list[tuple[_Start, _VersionText]]

    def turn(self) -> Turn:
        spans = [(start, *map(int, version.split("."))) for start, version in self.version_spans]
        return Turn(self.prompt_token_ids, self.token_ids, self.logprobs, [(a, b, c) for a, b, c in spans])


class SamplingBody(BaseModel):
    """How the tokens were drawn, by the names that a completion is asked for with. What is left out is taken as the run
    has it: the numbers do not show it."""

    model_config = ConfigDict(extra="forbid")

    temperature: Annotated[_Finite, Field(ge=0.0)] | None = None
    top_p: Annotated[_Finite, Field(gt=0.0, le=1.0)] | None = None
    top_k: Annotated[int, Field(strict=True, ge=-1, lt=2**31)] | None = None
    min_p: Annotated[_Finite, Field(ge=0.0, le=1.0)] | None = None

    def check(self, drawn: SamplingParams) -> None:
        """Raises Refusal for another distribution than that of `drawn`: the learner knows the log-probs of no other."""
        for name, given in self.model_dump(exclude_none=True).items():
            ours = getattr(drawn, name)
            if max(given, 0) != ours:  # -1 is off, for top_k
                what = f"{name} is {given:g}; the run trains on what is sampled with {ours:g}"
                way_out = "sample it anew with that, or leave it out"
                raise invalid("sampling_not_trained", f"{what}: {way_out}", f"sampling.{name}")


class TrajectoryBody(BaseModel):
    """key: the client's own name for it: sent again under it, it is the same one. group: shared with those that its
    reward is compared with. components: of the reward, where the run wants any. sampling: how it was drawn, to have it
    checked."""

    model_config = ConfigDict(extra="forbid")

    key: Name
    group: Name
    reward: float
    components: dict[str, float] = {}
    finish_reason: Literal["stop", "length"] = "stop"
    sampling: SamplingBody | None = None
    turns: list[TurnBody]

    def trajectory(
        self, *, context: int, vocab_size: int, components: Sequence[str], drawn: SamplingParams
    ) -> Trajectory:
        """Raises Refusal. components: the names that the run wants. drawn: as its rollouts are."""
        if self.sampling is not None:
            self.sampling.check(drawn)
        branch = Branch([turn.turn() for turn in self.turns], self.finish_reason)
        check_branch(branch, context=context, vocab_size=vocab_size)
        check_reward(self.reward, self.components, components)
        # Behind the checks: a number that JSON has no word for would not pass. Without what only had to be checked:
        # said or not, it is the same trajectory.
        digest = xxhash.xxh3_64_intdigest(json_bytes(self.model_dump(exclude={"sampling"})))
        return Trajectory(self.key, digest, self.group, self.reward, self.components, [branch])


def check_reward(reward: float, given: Mapping[str, float], wanted: Sequence[str]) -> None:
    """Raises Refusal for a reward that is no number, or lacks a component, or has one that the run does not know."""
    if not math.isfinite(reward):
        raise invalid("non_finite", f"a reward of {reward}; leave out what could not be scored", "reward")
    if sorted(given) != sorted(wanted):
        what = f"components {sorted(given)!a}; this run's reward has {sorted(wanted)} (learner.algorithm.components)"
        raise invalid("wrong_components", what, "components")
    for name, value in given.items():
        if not math.isfinite(value):
            raise invalid("non_finite", f"component {name!a} is {value}", "components")
