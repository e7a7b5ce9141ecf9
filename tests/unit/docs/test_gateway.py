"""The examples of docs/gateway.md and docs/guides/trajectories.md, as they stand, at a live gateway."""

import json
import re
import shutil
from functools import partial
from pathlib import Path

import pytest
from support.gateway.agent_sessions import CALLS, gateway_of
from support.runs.docs_examples import Page, said, typed

COMMANDS = [*Page("gateway.md").commands(), *Page("guides/trajectories.md").commands()]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("number", range(len(COMMANDS)))
async def test_a_command_is_answered(number: int, tmp_path: Path) -> None:
    # The run here has published no later version than its first.
    command = re.sub(r'"0\.1[23]"', '"0.0"', COMMANDS[number])
    told = await typed(command.replace("curl ", "curl --fail-with-body ", 1), tmp_path)
    if "newest.safetensors" in COMMANDS[number]:
        assert (tmp_path / "user" / "newest.safetensors").read_bytes()[8:9] == b"{"
    elif "stream" in COMMANDS[number]:
        assert told.endswith("data: [DONE]\n\n")
    else:
        assert "error" not in json.loads(told)


def test_nothing_is_left_out() -> None:
    assert len(COMMANDS) == 5


async def test_completions_carry_what_was_sampled(tmp_path: Path) -> None:
    (program,) = Page("gateway.md").blocks("python")
    assert "[0, '0.1']" in await said(program, tmp_path)


async def test_an_agent_with_tools_is_rewarded(tmp_path: Path) -> None:
    (program,) = Page("guides/trajectories.md").blocks("python")
    for text in ("12+30=", "42"):  # in the letters of the model
        program = program.replace(text, "12")
    told = await said(program, tmp_path, partial(gateway_of, most=256, **CALLS))
    assert "branches=1" in told
