"""The tool `python`, and that it is refused where there is no sandbox."""

import asyncio
from pathlib import Path

import pytest

from streamrl.config.schema.sandbox import SandboxConfig
from streamrl.environments.build import environment_factory
from streamrl.environments.python_tool import python_tool
from streamrl.errors import ConfigError


def test_it_gives_back_what_the_program_prints_or_why_it_failed() -> None:
    assert ran("print(2**10)", "x = 1", "print(1)\n1 / 0", time_s=60.0) == [
        "1024\n",
        "(it printed nothing)",
        "1\nError: ZeroDivisionError: division by zero",
    ]


def test_it_says_what_the_limit_was_of_a_program_that_ran_too_long() -> None:
    assert ran("while True: pass", time_s=1.0) == ["Error: ran longer than 1 s"]


def ran(*programs: str, time_s: float) -> list[str]:
    python = python_tool(SandboxConfig(time_s=time_s, level="namespaces"))

    async def answers() -> list[str]:
        return [await python(program) for program in programs]

    return asyncio.run(answers())


def test_a_model_calls_it_as_any_tool() -> None:
    environment = environment_factory("tools", {}, ["python", "calculator"])()
    assert [tool["function"]["name"] for tool in environment.tools] == ["python", "calculator"]
    assert environment.tools[0]["function"]["parameters"]["required"] == ["code"]
    call = {"id": "1", "type": "function", "function": {"name": "python", "arguments": {"code": "print(6 * 7)"}}}
    answer = asyncio.run(environment.step({"role": "assistant", "content": "", "tool_calls": [call]}))
    assert answer[0]["content"] == "42\n"


def test_without_a_sandbox_there_is_no_such_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="no sandbox on this machine"):
        environment_factory("tools", {}, ["python"], SandboxConfig(level="bubblewrap"))
