"""Environments as users write them, good ones and bad ones; played in child processes of the tests."""

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

from streamrl.environments import Done


class Echo:
    """Repeats what the model says, and ends at its third message. truncated: 0.5."""

    def __init__(self, opening: str = "hi") -> None:
        self.tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
        self._opening = opening
        self._heard: list[dict[str, Any]] = []

    async def reset(self, row: dict[str, Any]) -> str:
        self._row = row
        return self._opening

    async def step(self, message: dict[str, Any]) -> Any:
        self._heard.append(message)
        if len(self._heard) == 3:
            return Done(1.0, {"heard": 3}, {"row": self._row, "last": message})
        return [{"role": "user", "content": "hi"}]

    def truncated(self) -> Done:
        return Done(0.5)


class Plain:
    """Plain functions, and no messages of its own."""

    def reset(self, row: dict[str, Any]) -> None:
        self._row = row

    def step(self, message: dict[str, Any]) -> Done:
        return Done(None, {"length": len(message["content"])})


class Bad:
    """Does `how` at its first step; plays well the `after`-th time that this file is made."""

    def __init__(self, how: str = "", marks: str = "", after: int = 10**6) -> None:
        self._how, self._marks, self._after = how, marks, after

    async def reset(self, row: dict[str, Any]) -> str:
        self._how = row.get("how", self._how)
        return "hi"

    async def step(self, message: dict[str, Any]) -> Any:
        if self._marks:
            marks = Path(self._marks)
            marks.write_text(marks.read_text() + "x" if marks.exists() else "x")  # noqa: ASYNC240 - a moment
            if len(marks.read_text()) >= self._after:  # noqa: ASYNC240
                return Done(1.0)
        return await bad_step(self._how)


async def bad_step(how: str) -> Any:
    match how:
        case "good":
            return Done(1.0)
        case "waits":
            await asyncio.sleep(0.5)
            return Done(1.0)
        case "hangs":
            await asyncio.sleep(10**6)
        case "blocks":
            time.sleep(10**6)  # noqa: ASYNC251 - what is tested
        case "raises":
            raise ValueError("no\nsuch move")
        case "exits":
            raise SystemExit(3)
        case "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        case "leaks":
            return bytearray(2**40)
        case "is large":
            return Done(float(len(bytearray(2**29)) > 0))
        case "nan":
            return Done(float("nan"))
        case "component":
            return Done(1.0, {"speed": float("inf")})
        case "text for a reward":
            return Done("much")  # type: ignore[arg-type]
        case "number":
            return 1.0
        case "nothing":
            return []
        case "no role":
            return [{"content": "hi"}]
        case "no text":
            return [{"role": "user", "content": 3}]
        case "no dict":
            return ["hi"]
        case "no json":
            return [{"role": "user", "content": "hi", "more": object()}]


class Hanging:
    """A plain function that hangs: nothing but the end of its process stops it."""

    def reset(self, row: dict[str, Any]) -> str:
        return "hi"

    def step(self, message: dict[str, Any]) -> Any:
        time.sleep(10**6)


class Unmade:
    def __init__(self) -> None:
        raise RuntimeError("no board")


class Lost:
    """Has no opening."""

    def reset(self, row: dict[str, Any]) -> str:
        raise RuntimeError("no board")

    def step(self, message: dict[str, Any]) -> Any:
        """Never asked."""


class NoStep:
    def reset(self, row: dict[str, Any]) -> str:
        return "hi"


not_a_class = 3


class Crowd:
    """Says how many of its kind were called at once, at most."""

    inside, most = 0, 0

    async def reset(self, row: dict[str, Any]) -> str:
        return "hi"

    async def step(self, message: dict[str, Any]) -> Done:
        Crowd.inside += 1
        Crowd.most = max(Crowd.most, Crowd.inside)
        await asyncio.sleep(0.05)
        Crowd.inside -= 1
        return Done(float(Crowd.most))


class Helper:
    """Answers each call with `2`, and a message without one with `1`; ends at the fifth message."""

    def __init__(self) -> None:
        parameters = {"type": "object", "properties": {"a": {"type": "integer"}}}
        self.tools = [{"type": "function", "function": {"name": "add", "parameters": parameters}}]
        self._heard = 0

    async def reset(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"role": "user", "content": "1"}]

    async def step(self, message: dict[str, Any]) -> Any:
        self._heard += 1
        if self._heard == 5:
            return Done(1.0)
        calls = message.get("tool_calls") or ()
        answers = [{"role": "tool", "tool_call_id": call["id"], "content": "2"} for call in calls]
        return answers or [{"role": "user", "content": "1"}]


class Space:
    n = 2


class Stairs:
    """In gymnasium's style: two steps up are the end."""

    action_space = Space()

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        self._step = 0
        return "step 0", {}

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._step += 1 if action == 0 else -1
        return f"step {self._step}", 1.0, self._step == 2, False, {}

    def close(self) -> None:
        """Nothing is open."""


def nap(seconds: float) -> str:
    """A tool that takes its time."""
    time.sleep(seconds)
    return "awake"


class Moody:
    """Answers each message with `1`, the first one with what the file `moods` says where it is there; ends at the
    fourth."""

    def __init__(self, moods: str) -> None:
        self._moods = Path(moods)
        self._heard = 0

    async def reset(self, row: dict[str, Any]) -> str:
        return "1"

    async def step(self, message: dict[str, Any]) -> Any:
        self._heard += 1
        if self._heard == 4:
            return Done(1.0)
        moody = self._heard == 1 and self._moods.exists()
        return [{"role": "user", "content": self._moods.read_text() if moody else "1"}]
