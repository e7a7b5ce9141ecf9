"""Each command of the tutorials that a CPU can run, in the order of the page, with few steps.

A page takes half a minute, most of it Ray's start. Two are `long`: what they alone show, other tests show in less time.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.runs.tutorials import Tutorial, type_in

pytestmark = [pytest.mark.ray, pytest.mark.long]

FEW_WARM = "--warmup.max_steps 5 --eval.max_items 8"
FEW = f"--learner.steps 2 --learner.groups_per_step 4 {FEW_WARM}"
NOTHING: Mapping[str, str] = {}


def follow(name: str, folder: Path, instead: Mapping[str, str] = NOTHING) -> str:
    """Types all commands of a page. instead: of words, what is typed for them. Returns what was printed."""
    tutorial = Tutorial(name)
    tutorial.write(folder)
    printed = []
    for command in tutorial.commands():
        typed = f"{command} {FEW}" if command.startswith("streamrl up") else command
        for word, other in instead.items():
            typed = typed.replace(word, other)
        done = type_in(folder, typed)
        assert done.returncode == 0, f"{typed}\n{done.stdout}"
        printed.append(done.stdout)
    return "".join(printed)


def trained(folder: Path, name: str) -> dict[str, object]:
    """The summary of a run that came to its end."""
    return json.loads((folder / "runs" / name / "summary.json").read_text())


def test_own_data(tmp_path: Path) -> None:
    printed = follow("own-data", tmp_path)
    assert "data: 4576 prompts to train on, 474 of eval to evaluate on" in printed
    assert "text     '<bos>" in printed
    assert trained(tmp_path, "questions")["steps"] == 2


def test_own_reward(tmp_path: Path) -> None:
    printed = follow("own-reward", tmp_path)
    assert "{'reward': 1.0, 'right': 1.0, 'length': 1.0, 'ended': 1.0}" in printed
    assert "avg(components['right'])" in printed
    assert trained(tmp_path, "rewarded")["steps"] == 2


def test_own_model(tmp_path: Path) -> None:
    printed = follow("own-model", tmp_path)
    assert '"model_type": "llama"' in printed
    assert "worst.token_id" in printed
    assert (tmp_path / "trained/model.safetensors").stat().st_size > 1_000_000


def test_an_agent(tmp_path: Path) -> None:
    instead = {FEW: FEW_WARM, "pip install openai": "python -c 'import openai'", "agent.py 320": "agent.py 32"}
    printed = follow("agent", tmp_path, instead)
    assert re.search(r"32 sessions, mean reward 0\.\d\d; step 2 is published", printed)
