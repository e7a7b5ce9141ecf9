"""Environments of `gymnasium`, and classes in its style, as conversations: observations as text, actions by name."""

import importlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from streamrl.environments.base import Done, Message
from streamrl.errors import ConfigError

MISSING = "the package gymnasium is not installed: pip install gymnasium"


class GymnasiumEnvironment:
    """One episode of `gymnasium.make(id, **make)`. Its reward is the sum over all steps.

    id: of a registered environment, or `module:Class` of one in gymnasium's style. actions: names of the actions of a
    `Discrete` space, in their order; their numbers where there are none. A message names its action by the last of
    these words in it; one that names none is told so, and costs a turn. instructions: what the first message begins
    with. The row's `seed` seeds the episode.

    Raises ConfigError for an environment that cannot be had, and for a space of actions that is not `Discrete`.
    """

    def __init__(
        self,
        id: str,
        actions: Sequence[str] = (),
        instructions: str = "",
        make: Mapping[str, Any] | None = None,
    ) -> None:
        self._environment = _make(id, dict(make or {}))
        space = self._environment.action_space
        count = getattr(space, "n", None)
        if count is None:
            raise ConfigError(f"gymnasium {id!r}: its actions are {space}; only a Discrete space has names")
        if actions and len(actions) != count:
            raise ConfigError(f"gymnasium {id!r}: {len(actions)} names of actions; its space has {count}")
        self._first = int(getattr(space, "start", 0))
        self._actions = list(actions) or [str(self._first + number) for number in range(int(count))]
        self._instructions = instructions
        self._reward = 0.0
        self._steps = self._invalid = 0

    def reset(self, row: dict[str, Any]) -> list[Message]:
        """The first observation, behind the instructions."""
        seed = row.get("seed")
        observation, _ = self._environment.reset(seed=None if seed is None else int(seed))
        text = f"{self._instructions}\n{observation}" if self._instructions else str(observation)
        return [{"role": "user", "content": text}]

    def step(self, message: Message) -> list[Message] | Done:
        """The next observation, or the end."""
        action = self._action(str(message["content"]))
        if action is None:
            self._invalid += 1
            return [{"role": "user", "content": f"Name one action: {', '.join(self._actions)}"}]
        observation, reward, terminated, truncated, _ = self._environment.step(action)
        self._reward += float(reward)
        self._steps += 1
        return self._done() if terminated or truncated else [{"role": "user", "content": str(observation)}]

    def truncated(self) -> Done:
        """What it has gathered."""
        return self._done()

    def close(self) -> None:
        self._environment.close()

    def _done(self) -> Done:
        return Done(self._reward, {"steps": self._steps, "invalid_actions": self._invalid})

    def _action(self, text: str) -> int | None:
        found = [
            (match.end(), number)
            for number, name in enumerate(self._actions)
            for match in re.finditer(rf"(?<!\w){re.escape(name)}(?!\w)", text, re.IGNORECASE)
        ]
        return self._first + max(found)[1] if found else None


def _make(id: str, options: dict[str, Any]) -> Any:
    module, _, name = id.partition(":")
    if name.isidentifier():
        return getattr(importlib.import_module(module), name)(**options)
    try:
        import gymnasium
    except ImportError as error:
        raise ConfigError(f"environment 'gymnasium': {MISSING}") from error
    try:
        return gymnasium.make(id, **options)
    except gymnasium.error.Error as error:
        raise ConfigError(f"environment 'gymnasium': {error}") from error
