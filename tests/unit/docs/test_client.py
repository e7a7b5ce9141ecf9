"""The examples of docs/guides/client.md do what the page says: each is run as it stands, against a live gateway."""

import json
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest
from support.runs.docs_examples import Page, said, typed

from streamrl.config import load

PAGE = Page("guides/client.md")
MODEL = '[model]\npreset = "tiny-qwen3"\n'


async def test_prompts_are_streamed(tmp_path: Path) -> None:
    lines = (await said(PAGE.blocks("python")[0], tmp_path)).splitlines()
    assert len(lines) == 10
    assert all("Version(incarnation=0, step=1)" in line for line in lines)


async def test_a_script_submits_and_waits(tmp_path: Path) -> None:
    told = (await said(PAGE.blocks("python")[1], tmp_path)).strip()
    assert re.fullmatch(r"\[(\[[01., ]+\](, )?){4}\]", told), told


async def test_a_run_is_steered(tmp_path: Path) -> None:
    told = await said(PAGE.blocks("python")[2], tmp_path)
    assert told == "{'rollout': 2, 'before': 1}\nstep 1 is published, policy.safetensors has version 0.1\n"


async def test_a_file_of_prompts_is_submitted_from_a_shell(tmp_path: Path) -> None:
    assert await typed(PAGE.commands()[0], tmp_path) == ""
    results = [json.loads(line) for line in (tmp_path / "user" / "results.jsonl").read_text().splitlines()]
    assert len(results) == 3
    assert {len(result["rollouts"]) for result in results} == {8}


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_the_wire_is_spoken_by_curl(tmp_path: Path) -> None:
    told = [json.loads(line) for line in (await typed(PAGE.commands()[1], tmp_path)).splitlines()]
    assert Counter(line["type"] for line in told) == {"accepted": 3, "finished": 3, "end": 1}


def test_no_example_is_left_out() -> None:
    assert len(PAGE.blocks("python")) == 3
    assert [command.split()[0] for command in PAGE.commands()] == ["streamrl", "curl"]


@pytest.mark.parametrize("number", range(len(PAGE.blocks("toml"))))
def test_what_is_configured_is_a_configuration(number: int, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(MODEL + PAGE.blocks("toml")[number])
    assert load(path).gateway.enabled
