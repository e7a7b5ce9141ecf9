"""What an environment is: it opens a conversation, answers what the model says, and says what the episode is worth.

One object plays one episode. It is made in a child process by `environment.name` with `environment.options`, and may
do there what it likes: nothing that it does ends a run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Message = Mapping[str, Any]
"""A message as OpenAI's API has it: `{"role": "user", "content": "..."}`. What the model said has `role` "assistant",
`content` (its text without tool calls), and where it called tools `tool_calls`, each `{"id": ..., "type": "function",
"function": {"name": ..., "arguments": {...}}}`; the arguments are an object, not text."""


@dataclass(frozen=True, slots=True)
class Done:
    """The end of an episode.

    reward: what it is worth; None where only the run's other reward functions say. components: more numbers, by name.
    info: what people may read later. rewards: of several agents, each one's own, for all that spoke; without it they
    share `reward`, with it `reward` is their mean.

    Example:
        >>> Done(1.0, {"moves": 3.0}).reward
        1.0
    """

    reward: float | None = None
    components: Mapping[str, float] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)
    rewards: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ToAgent:
    """Of several agents in one episode the one that speaks next, and what it is told since it spoke last.

    All are played by the model that is trained. Each has a conversation of its own, and rows of its own with its own
    reward.

    Example:
        >>> ToAgent("guesser", "The hint is: red.").agent
        'guesser'
    """

    agent: str
    messages: Sequence[Message] | str


class Environment(Protocol):
    """One episode. All methods may be coroutines or plain functions; a plain one runs in a thread of its own.

    tools: optional; functions, or JSON schemas in OpenAI's form, that the model's chat template is given.

    Example:
        >>> class Guess:
        ...     def reset(self, row):
        ...         self.number = int(row["answer"])
        ...         return [{"role": "user", "content": "I think of a number from 1 to 9."}]
        ...     def step(self, message):
        ...         if message["content"].strip() == str(self.number):
        ...             return Done(1.0)
        ...         return [{"role": "user", "content": "No. Again."}]
        >>> game = Guess()
        >>> game.reset({"answer": "7"})[0]["content"]
        'I think of a number from 1 to 9.'
        >>> game.step({"role": "assistant", "content": "7"}).reward
        1.0
    """

    def reset(self, row: dict[str, Any]) -> Sequence[Message] | str | ToAgent | None:
        """The first messages. row: the columns of the data's row, or the task's payload, with its text as `prompt`.
        A text is one message of a user. None leaves the row's own prompt as it is."""
        ...

    def step(self, message: Message) -> Sequence[Message] | str | ToAgent | Done:
        """The answer to what the model said: messages, after which the model goes on, or the end. A text is one
        message of a user."""
        ...

    # Optional:
    #
    # def truncated(self) -> Done: a limit of the run ended the episode before `step` did. Without it the reward is
    #     `environment.truncated_reward`.
    # def close(self) -> None: nothing more comes, however the episode ended.
