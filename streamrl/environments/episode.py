"""One rollout of several turns: what the engine is asked next, and when it is over. Pure.

    opened(messages) -> request -> sampled(result) -> message of the model -> went_on(messages) -> request -> ...

Guarantees: ids that were sampled are the ids of the rows, over all turns; what the environment said is never trained;
no branch is longer than the context, and all of them together not longer than `max_tokens`. A template that rewrites
what was said before forks a branch, which is counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import msgspec

from streamrl.clock import Clock
from streamrl.conversations.branches import Branch
from streamrl.conversations.conversation import Call, Conversation
from streamrl.environments.base import Message
from streamrl.environments.chat import Chat, ChatPrompt, Said
from streamrl.environments.outcomes import EnvironmentFault, Fault
from streamrl.errors import ConfigError, DataError
from streamrl.ids import completion_seed, turn_seed
from streamrl.types import FinishReason, GenerationRequest, GenerationResult


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """max_turns: of the model. max_tool_calls: None for any number. max_tokens: of all branches. context: of one.
    timeout_s: from its begin, looked at between two turns. final_bytes: of the last message that is kept."""

    max_turns: int
    max_tokens: int
    context: int
    timeout_s: float
    max_tool_calls: int | None = None
    final_bytes: int = 2**20


class Limit(StrEnum):
    """What ended an episode before its environment did."""

    TURNS = "max_turns"
    TOOL_CALLS = "max_tool_calls"
    TOKENS = "max_tokens"
    TURN_TOKENS = "max_new_tokens"
    TIME = "episode_timeout_s"


@dataclass(frozen=True, slots=True)
class Rollout:
    """What an episode is begun from: of its rollout the id, the row's own prompt, how it is sampled, and the run's
    seed. row: what `reset` is given."""

    request: GenerationRequest
    text: str
    row: dict[str, Any]
    run_seed: int


@dataclass(slots=True)
class _Seat:
    """What one agent has been told and has said."""

    messages: list[Message] = field(default_factory=list)
    conversation: Conversation = field(default_factory=Conversation)


class Episode:
    """See the module. name: of the environment, for messages.

    Example:
        episode = Episode(rollout, limits, chat, SystemClock(), "my_game:Game")
        request = episode.opened(messages, tools)
        said = episode.sampled(result)
        request = episode.went_on(answer)           # or None: episode.limit says why
        rows = episode.branches()
    """

    def __init__(self, rollout: Rollout, limits: EpisodeLimits, chat: Chat, clock: Clock, name: str) -> None:
        self._rollout = rollout
        self._limits = limits
        self._chat = chat
        self._clock = clock
        self._name = name
        self._ends_at = clock.now() + limits.timeout_s
        self._tools: Sequence[dict[str, Any]] = ()
        self._seats: dict[str, _Seat] = {}
        self._speaker, self._seat = "", _Seat()
        """The agent that speaks next, or spoke last."""
        self._asked: ChatPrompt | None = None
        self.turns = 0
        self.tool_calls = 0
        self.limit: Limit | None = None
        """What ended it, where it was a limit of the run."""
        self.final = ""
        """Text of the last message of the model."""

    def opened(
        self, messages: Sequence[Message] | None, tools: Sequence[dict[str, Any]], agent: str = ""
    ) -> GenerationRequest | None:
        """The first request. messages: None for the row's own prompt. agent: who speaks, of several. None where the
        prompt has no room.

        Raises EnvironmentFault for messages that the template does not take."""
        self._tools = tools
        self._speaker = agent
        self._seat = self._seats.setdefault(agent, self._seat)
        if messages is None:
            self._seat.messages = [{"role": "user", "content": self._rollout.text}]
            return self._ask(ChatPrompt(self._rollout.text, self._rollout.request.prompt_ids))
        self._seat.messages = list(messages)
        return self._ask_of_messages()

    def sampled(self, result: GenerationResult) -> Said:
        """What the model said, of a result that ended as STOP or LENGTH; `limit` is set where it was cut off."""
        assert self._asked is not None, "asked before it is answered"
        said = self._chat.said(result, f"{self._rollout.request.request_id}/{self.turns}", self._tools)
        spans = [(span.start, *span.version) for span in result.version_spans]
        calls = said.message.get("tool_calls", ())
        # The message stands in the next prompt as it was sampled, whatever a template makes of calls.
        self._seat.conversation.add(
            Call(
                self._asked.ids.tolist(),
                result.token_ids.tolist(),
                result.logprobs.tolist(),
                spans,
                result.finish_reason.value,
                self._asked.text + said.shown,
                routes=result.routes,
            )
        )
        self._seat.messages.append({"role": "assistant", "content": said.text})
        self.turns += 1
        self.tool_calls += len(calls)
        self.final = said.message["content"].encode()[: self._limits.final_bytes].decode(errors="ignore")
        if result.finish_reason is FinishReason.LENGTH:
            self.limit = Limit.TURN_TOKENS
        elif self._limits.max_tool_calls is not None and self.tool_calls > self._limits.max_tool_calls:
            self.limit = Limit.TOOL_CALLS
        return said

    def went_on(self, messages: Sequence[Message], agent: str | None = None) -> GenerationRequest | None:
        """The next request; None where a limit ends the episode. agent: who is told; None for who spoke last.

        Raises EnvironmentFault as `opened` does."""
        if agent is not None:
            self._speaker = agent
            self._seat = self._seats.setdefault(agent, _Seat())
        self._seat.messages += messages
        if self.turns >= self._limits.max_turns:
            self.limit = Limit.TURNS
        elif self._clock.now() >= self._ends_at:
            self.limit = Limit.TIME
        return None if self.limit is not None else self._ask_of_messages()

    def branches(self) -> list[Branch]:
        """The rows of the episode, agent by agent in the order in which they began; empty where nothing was sampled."""
        return [branch for _, branch in self._spoken()]

    def agents(self) -> list[str]:
        """Whose row each of them is: "" where there is one agent."""
        return [agent for agent, _ in self._spoken()]

    def _spoken(self) -> list[tuple[str, Branch]]:
        return [(agent, branch) for agent, seat in self._seats.items() for branch in seat.conversation.branches()]

    def _ask_of_messages(self) -> GenerationRequest | None:
        try:
            memory = self._seat.conversation.memory()
            prompt = self._chat.prompt(self._seat.messages, self._tools, memory, self._limits.context)
        except (DataError, ConfigError) as error:
            raise EnvironmentFault(Fault.GARBAGE, f"{self._name}, turn {self.turns}: {error}") from error
        if prompt is None:
            self.limit = Limit.TOKENS
            return None
        return self._ask(prompt)

    def _ask(self, prompt: ChatPrompt) -> GenerationRequest | None:
        new = len(prompt.ids) - prompt.num_begun
        used = sum(seat.conversation.num_tokens for seat in self._seats.values())
        most = min(
            self._rollout.request.sampling.max_new_tokens,
            self._limits.context - len(prompt.ids),
            self._limits.max_tokens - used - new,
        )
        if most < 1:
            self.limit = Limit.TOKENS
            return None
        self._asked = prompt
        asked = self._rollout.request
        seed = completion_seed(turn_seed(self._rollout.run_seed, asked.request_id, self.turns), 0)
        sampling = msgspec.structs.replace(asked.sampling, max_new_tokens=most)
        conversation = f"{asked.request_id}/{self._speaker}" if self._speaker else asked.request_id
        return replace(
            asked,
            prompt_ids=prompt.ids,
            seed=seed,
            sampling=sampling,
            conversation=conversation,
            opening=prompt.opening,
        )
