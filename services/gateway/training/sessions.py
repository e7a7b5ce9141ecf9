"""Sessions at the gateway: what their calls sampled is kept, and handed to the run when they are rewarded.

Nothing of a session is on the disk before its reward: a gateway that dies takes those that it has with it. Its reward
is as durable as any trajectory's.
"""

from dataclasses import replace
from typing import Any, Final

from streamrl.conversations.memory import NOTHING, Memory
from streamrl.conversations.tool_calls import MessageReader
from streamrl.gateway.openai.bodies import ChatRequest, CompletionRequest
from streamrl.gateway.openai.requests import ParsedRequest
from streamrl.gateway.refusal import Refusal
from streamrl.gateway.sessions.capture import Capture
from streamrl.gateway.sessions.session_body import RewardBody, as_rollouts, key_of
from streamrl.gateway.sessions.sessions import Sessions
from streamrl.models.tokenizer import TextTokenizer
from streamrl.services.gateway.training.trajectories import TrajectoryService
from streamrl.types import SamplingParams

SESSION: Final = "session/"
"""What the names of their conversations begin with: a rollout may be called as a session is."""


class SessionService:
    """See the module. drawn: how the run's rollouts are. strict: a call that wants to be drawn otherwise is refused."""

    def __init__(
        self,
        sessions: Sessions,
        trajectories: TrajectoryService,
        tokenizer: TextTokenizer,
        drawn: SamplingParams,
        strict: bool,
    ) -> None:
        self._strict = strict
        self._sessions = sessions
        self._trajectories = trajectories
        self._tokenizer = tokenizer
        self._drawn = drawn

    def memory(self, name: str | None) -> Memory:
        """What a session knows of what was said in it. name: None without a session."""
        return NOTHING if name is None else self._sessions.memory(name)

    def opened(
        self,
        name: str | None,
        asked: ParsedRequest,
        body: ChatRequest | CompletionRequest,
        reader: MessageReader | None = None,
    ) -> tuple[ParsedRequest, Capture | None]:
        """A request as its session has it made. name: None without a session. reader: of the tool calls in its answer.
        Raises Refusal."""
        if name is None:
            return asked, None
        self._trajectories.require_none_greedy()
        asked = as_rollouts(asked, body, self._drawn, strict=self._strict)
        asked = replace(asked, conversation=f"{SESSION}{name}", memory=self._sessions.memory(name))
        return asked, Capture(self._sessions, name, asked, self._tokenizer, reader)

    def require_training(self) -> None:
        """Raises Refusal in a run that takes no sessions."""
        self._trajectories.require_none_greedy()

    async def reward(self, name: str, body: RewardBody) -> dict[str, Any]:
        """End a session with its reward; what became of it. Raises Refusal."""
        service = self._trajectories
        body.check(service.components)
        counts: dict[str, int] = {}
        standing = await service.known(key_of(name))
        if standing is None:
            session = self._sessions.take(name)
            try:
                trajectory = body.trajectory(name, session, context=service.context, vocab_size=service.vocab_size)
                standing = await service.offer(trajectory)
            except BaseException:
                self._sessions.reopen(name)
                raise
            counts = {"branches": len(trajectory.branches), "turns": session.num_turns}
        if standing.digest != body.digest:
            what = f"session {name!a} was rewarded before, with another reward or group; it keeps the first"
            raise Refusal(409, "already_rewarded", what)
        self._sessions.rewarded(name)
        return {"session": name, **service.status_of(standing), **counts}
