"""The README: short, and what it shows is so."""

import json
import re
import shlex
from pathlib import Path

import pytest
from support.repository import ROOT

from streamrl.config.loading.load import load_args
from streamrl.services.cli.main import app

README = (ROOT / "README.md").read_text()
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def blocks(language: str) -> list[str]:
    """What is fenced as of a language; "" for what names none."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    return [text for named, text in found if named == language]


def test_it_has_120_lines_at_most() -> None:
    assert len(README.splitlines()) <= 120


def test_a_job_of_ones_own_is_a_configuration_of_15_lines(tmp_path: Path) -> None:
    (job,) = blocks("toml")
    assert len(job.splitlines()) <= 15
    (tmp_path / "job.toml").write_text(job)
    config = load_args(tmp_path / "job.toml", ["--model.path", "none", "--model.preset", "tiny-qwen3"])
    assert (config.data.train, config.data.eval, config.reward.function) == ("train.parquet", "test.parquet", "math")


def test_its_commands_are_commands() -> None:
    (typed,) = blocks("sh")
    commands = [shlex.split(line, comments=True) for line in typed.splitlines()]
    assert [command[:2] for command in commands] == [["streamrl", verb] for verb in ("check", "data", "up", "why")]
    for command in commands:
        app.parse_args(command[1:], exit_on_error=False, print_error=False)


def test_make_knows_what_it_names() -> None:
    named = set(re.findall(r"make ([a-z-]+)(?=[` ])", README)) - {"that"}
    assert {"quickstart", "test", "docs"} <= named
    assert named <= TARGETS


def test_the_quickstart_printed_what_its_record_says() -> None:
    rows = json.loads((ROOT / "benchmarks/results/quickstart-2cpu.json").read_text())["rows"]
    value = {row["name"]: row["value"] for row in rows}
    before, after = value["held-out score before"], value["held-out score after"]
    assert f"held-out score            {before:.3f} -> {after:.3f}" in README
    assert f"rollouts/s                {value['rollouts trained per second']:.0f}" in README


@pytest.mark.parametrize("picture", re.findall(r"!\[[^]]+\]\(([^)]+)\)", README))
def test_its_pictures_are_there(picture: str) -> None:
    assert (ROOT / picture).stat().st_size > 10_000


def test_it_has_the_curve_and_the_page() -> None:
    assert "](docs/images/quickstart-2cpu.png)" in README
    assert "](docs/images/page.png)" in README
