"""What a request says of its session: which one, how its tokens are drawn, and what its reward is. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec
import xxhash
from pydantic import BaseModel, ConfigDict

from streamrl.conversations.conversation import Conversation
from streamrl.gateway.openai.adjustments import asking_for_adjustments
from streamrl.gateway.openai.bodies import ChatRequest, CompletionRequest
from streamrl.gateway.openai.grammars import asking_for_grammar
from streamrl.gateway.openai.requests import ParsedRequest
from streamrl.gateway.refusal import invalid, json_bytes
from streamrl.gateway.sessions.trajectory import Trajectory, check_branch
from streamrl.gateway.sessions.trajectory_body import Name, check_reward
from streamrl.types import SamplingParams

HEADER: Final = "x-streamrl-session"
HEADERS: Final = (HEADER, "x-session-id")
"""Ours, and the one that other servers of rollouts read."""
IN_METADATA: Final = "metadata.session_id"
_NAME: Final = re.compile(r"[A-Za-z0-9_.:@+=-]{1,128}")
_DRAWN: Final = ("temperature", "top_p", "top_k", "min_p")


class RewardBody(BaseModel):
    """The body of `/api/sessions/{id}/reward`. group: shared with those that the reward is compared with; without it,
    those that began with the same prompt. components: of the reward, where the run wants any."""

    model_config = ConfigDict(extra="forbid")

    reward: float
    group: Name | None = None
    components: dict[str, float] = {}

    @property
    def digest(self) -> int:
        """Of all that it says, 64 bits."""
        return xxhash.xxh3_64_intdigest(json_bytes(self.model_dump()))

    def check(self, components: Sequence[str]) -> None:
        """Raises Refusal. components: the names that the run wants."""
        check_reward(self.reward, self.components, components)

    def trajectory(self, name: str, session: Conversation, *, context: int, vocab_size: int) -> Trajectory:
        """Of a session. Raises Refusal for tokens that cannot be trained on, and where there are none to train."""
        branches = session.branches()
        if not branches:
            what = "grammars chose every token of this session: nothing of it is the model's, to be trained"
            raise invalid("empty_trajectory", what, "reward")
        for branch in branches:
            check_branch(branch, context=context, vocab_size=vocab_size)
        group = self.group or f"prompt/{xxhash.xxh3_64_hexdigest(json_bytes(list(session.first_prompt)))}"
        return Trajectory(key_of(name), self.digest, group, self.reward, self.components, branches)


class SessionBody(BaseModel):
    """The body of `/api/sessions`. session_id: of the session to begin; without it, a new one."""

    model_config = ConfigDict(extra="forbid")

    session_id: str | None = None


def key_of(name: str) -> str:
    """What the trajectory of a session is called."""
    return f"session/{name}"


def session_of(headers: Mapping[str, str], body: BaseModel) -> str | None:
    """The session of a request: of a header, or `session_id` of its metadata; None without one. Raises Refusal."""
    metadata = (body.model_extra or {}).get("metadata")
    said = {header: headers[header] for header in HEADERS if header in headers}
    if isinstance(metadata, dict) and metadata.get("session_id") is not None:
        said[IN_METADATA] = metadata["session_id"]
    if not said:
        return None
    (param, name), *others = said.items()
    for other, also in others:
        if also != name:
            what = f"{param} is {name!a} and {other} {also!a}; a request has one session"
            raise invalid("invalid_value", what, other)
    return checked(name, param)


def checked(name: Any, param: str) -> str:
    """Raises Refusal for what is no id of a session."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        what = "a session's id has 1 to 128 letters, digits and any of '_.:@+=-'"
        raise invalid("invalid_value", f"{name!a:.200}: {what}", param)
    return name


def as_rollouts(
    asked: ParsedRequest, body: ChatRequest | CompletionRequest, drawn: SamplingParams, *, strict: bool = True
) -> ParsedRequest:
    """The same, drawn as the run's rollouts are: the learner knows the log-probs of no other distribution. strict: a
    request that wants another one is refused. Raises Refusal for that, and for what no turn of a session has."""
    _check_turn(asked, body, drawn)
    for name in _DRAWN if strict else ():
        given, ours = getattr(body, name), getattr(drawn, name)
        if given is not None and max(given, 0) != ours:
            what = f"{name} is {given}; the run trains on what is sampled with {ours:g}: leave it out in a session"
            raise invalid("sampling_not_trained", f'{what}, or set gateway.session_sampling = "run"', name)
    sampling = msgspec.structs.replace(drawn, max_new_tokens=asked.sampling.max_new_tokens)
    return replace(asked, sampling=sampling)


def _check_turn(asked: ParsedRequest, body: ChatRequest | CompletionRequest, drawn: SamplingParams) -> None:
    """Raises Refusal for a request that no turn of a session can be."""
    if asked.extras.prompt_logprobs:
        param = "echo" if asked.extras.echo_scored else "prompt_logprobs"
        what = "a turn of a session reuses what its history left, so that its prompt has no log-probs"
        raise invalid("invalid_value", f"{what}; leave out {param}, or ask outside of a session", param)
    if asked.grammar is not None and (changed := _changed(drawn)):
        param = next(iter(asking_for_grammar(body)))
        what = (
            "of a text by a grammar is trained what the model would have said too, at temperature 1 and from all tokens"
        )
        way_out = f"rollout.sampling has {changed}: leave out {param}, or ask outside of a session"
        raise invalid("sampling_not_trained", f"{what}; {way_out}", param)
    if asked.adjustments is not None:
        param = next(iter(asking_for_adjustments(asked.adjustments)))
        what = "a turn of a session is drawn from the model's own distribution, which the learner knows"
        raise invalid("invalid_value", f"{what}; leave out {param}, or ask outside of a session", param)
    if not asked.extras.completes:
        what = "max_tokens is 0, and a turn of a session is what was sampled; send 1 or more, or ask outside of one"
        raise invalid("invalid_value", what, "max_tokens")


def _changed(drawn: SamplingParams) -> str:
    """What of a run's sampling is not that of the model's own distribution."""
    own = SamplingParams()
    others = [name for name in _DRAWN if getattr(drawn, name) != getattr(own, name)]
    return ", ".join(f"{name} = {getattr(drawn, name):g}" for name in others)
