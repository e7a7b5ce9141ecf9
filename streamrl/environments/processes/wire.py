"""What the pool and a child process of environments say to each other, in frames of `streamrl.system.frames`.

Many episodes share a child, so calls are numbered, and answers come in any order.
"""

from typing import Any, Literal

import msgspec

from streamrl.config.schema.sandbox import SandboxConfig
from streamrl.environments.outcomes import Messages, Verdict
from streamrl.system.child_process import ChildOrder

OUT_OF_MEMORY, NOT_STOPPED = 71, 72
"""Exit codes of a child that ends itself over one call: what was called beside that is not to blame."""
Method = Literal["reset", "step", "truncated", "close"]


class ChildSettings(ChildOrder, frozen=True, kw_only=True):
    """What a child is told. name, options, tools: of `[environment]`. sandbox: `[sandbox]`."""

    name: str
    options: dict[str, Any]
    tools: list[str]
    sandbox: SandboxConfig = SandboxConfig()


class Ready(msgspec.Struct, frozen=True, array_like=True):
    """A child's first message. `error` is empty, or says why it can play nothing."""

    error: str = ""


class Call(msgspec.Struct, frozen=True, array_like=True, tag="call"):
    """Call a method of an episode's environment. given: the row of `reset`, the message of `step`."""

    number: int
    episode: int
    method: Method
    given: dict[str, Any] = {}


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag="cancel"):
    """Give up the call of that number."""

    number: int


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """What a call came to. messages: None where there is a verdict, or where `reset` leaves the row's prompt. tools: of
    `reset`. fault: a value of `Fault`, "" for none, with its text. agent: who is told the messages, "" where there is
    one."""

    number: int
    messages: Messages | None = None
    tools: list[dict[str, Any]] = []
    verdict: Verdict | None = None
    fault: str = ""
    text: str = ""
    agent: str = ""
