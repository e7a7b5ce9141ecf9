"""Sessions at the gateway: what their calls sampled is kept, and handed to the run when they are rewarded.

Nothing of a session is on the disk before its reward: a gateway that dies takes those that it has with it. Its reward
is as durable as any trajectory's.
"""

from typing import Any

from services.gateway.trajectories import TrajectoryDesk
from streamrl.gateway.asked import Asked, ChatRequest, CompletionRequest
from streamrl.gateway.capture import Capture
from streamrl.gateway.memory import NOTHING, Memory
from streamrl.gateway.refusal import Refusal
from streamrl.gateway.session_body import RewardBody, as_rollouts, key_of
from streamrl.gateway.sessions import Sessions
from streamrl.gateway.tool_calls import ToolCallReader
from streamrl.models.tokenizer import TextTokenizer
from streamrl.types import SamplingParams


class SessionDesk:
    """See the module. drawn: how the run's rollouts are."""

    def __init__(
        self, sessions: Sessions, trajectories: TrajectoryDesk, tokenizer: TextTokenizer, drawn: SamplingParams
    ) -> None:
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
        asked: Asked,
        body: ChatRequest | CompletionRequest,
        reader: ToolCallReader | None = None,
    ) -> tuple[Asked, Capture | None]:
        """A request as its session has it made. name: None without a session. reader: of the tool calls in its answer.
        Raises Refusal."""
        if name is None:
            return asked, None
        self._trajectories.require_none_greedy()
        asked = as_rollouts(asked, body, self._drawn)
        return asked, Capture(self._sessions, name, asked, self._tokenizer, reader)

    async def reward(self, name: str, body: RewardBody) -> dict[str, Any]:
        """End a session with its reward; what became of it. Raises Refusal."""
        desk = self._trajectories
        body.check(desk.components)
        counts: dict[str, Any] = {}
        standing = await desk.known(key_of(name))
        if standing is None:
            session = self._sessions.take(name)
            try:
                trajectory = body.trajectory(name, session, context=desk.context, vocab_size=desk.vocab_size)
                standing = await desk.offer(trajectory)
            except BaseException:
                self._sessions.reopen(name)
                raise
            turns = [len(branch.turns) for branch in trajectory.branches]
            counts = {"branches": len(turns), "turns": sum(turns)}
        if standing.digest != body.digest:
            what = f"session {name!a} was rewarded before, with another reward or group; it keeps the first"
            raise Refusal(409, "already_rewarded", what)
        self._sessions.rewarded(name)
        return {"session": name, **desk.told(standing), **counts}
