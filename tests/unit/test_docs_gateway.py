"""The commands of docs/gateway.md and docs/trajectories.md are answered: typed as they stand, at a live gateway."""

import json
import re
import shutil
from pathlib import Path

import pytest
from docs_examples import Page, typed

COMMANDS = [*Page("gateway.md").commands(), *Page("trajectories.md").commands()]


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


def test_no_command_is_left_out() -> None:
    assert len(COMMANDS) == 5
