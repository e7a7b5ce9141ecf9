"""What a request says of its session: which one, how its tokens are drawn, and what its reward is. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec
import xxhash
from pydantic import BaseModel, ConfigDict

from streamrl.gateway.asked import Asked, ChatRequest, CompletionRequest
from streamrl.gateway.refusal import invalid, json_bytes
from streamrl.gateway.sessions import Session
from streamrl.gateway.trajectory import Trajectory, check_branch
from streamrl.gateway.trajectory_body import Name, check_reward
from streamrl.types import SamplingParams

HEADER: Final = "x-streamrl-session"
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

    def trajectory(self, name: str, session: Session, *, context: int, vocab_size: int) -> Trajectory:
        """Of a session. Raises Refusal for tokens that cannot be trained on."""
        branches = session.branches()
        for branch in branches:
            check_branch(branch, context=context, vocab_size=vocab_size)
        group = self.group or f"prompt/{xxhash.xxh3_64_hexdigest(json_bytes(list(session.first_prompt)))}"
        return Trajectory(key_of(name), self.digest, group, self.reward, self.components, branches)


def key_of(name: str) -> str:
    """What the trajectory of a session is called."""
    return f"session/{name}"


def session_of(headers: Mapping[str, str], body: ChatRequest | CompletionRequest) -> str | None:
    """The session of a request: of its header, or `session_id` of its metadata; None without one. Raises Refusal."""
    metadata = (body.model_extra or {}).get("metadata")
    said: Any = metadata.get("session_id") if isinstance(metadata, dict) else None
    named = headers.get(HEADER)
    if named is not None and said is not None and named != said:
        what = f"{HEADER} is {named!a} and metadata.session_id {said!a}; a request has one session"
        raise invalid("invalid_value", what, "metadata.session_id")
    name = said if named is None else named
    return None if name is None else checked(name, HEADER if named is not None else "metadata.session_id")


def checked(name: Any, param: str) -> str:
    """Raises Refusal for what is no id of a session."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        what = "a session's id has 1 to 128 letters, digits and any of '_.:@+=-'"
        raise invalid("invalid_value", f"{name!a:.200}: {what}", param)
    return name


def as_rollouts(asked: Asked, body: ChatRequest | CompletionRequest, drawn: SamplingParams) -> Asked:
    """The same, drawn as the run's rollouts are: the learner knows the log-probs of no other distribution. Raises
    Refusal where the request wants another one."""
    for name in _DRAWN:
        given, ours = getattr(body, name), getattr(drawn, name)
        if given is not None and max(given, 0) != ours:
            what = f"{name} is {given}; the run trains on what is sampled with {ours:g}: leave it out in a session"
            raise invalid("sampling_not_trained", what, name)
    sampling = msgspec.structs.replace(drawn, max_new_tokens=asked.sampling.max_new_tokens)
    return replace(asked, sampling=sampling)
