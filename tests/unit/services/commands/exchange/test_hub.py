"""`streamrl export --push` against a local stand-in of the hub's API, by the published client."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from support.exchange.exported_run import exported_run
from support.exchange.stand_in_hub import TOKEN, StandInHub, serving

from streamrl.observability.evaluations import EvaluationRecord, append_evaluations
from streamrl.services.run.folder import RunFolder

REPO = "me/my-model"
FILES = {"config.json", "generation_config.json", "model.safetensors", "README.md", "reward.png"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return exported_run(tmp_path_factory.mktemp("hub") / "runs" / "mine")


@pytest.fixture
def hub() -> Iterator[StandInHub]:
    with serving(StandInHub()) as hub:
        yield hub


def streamrl(run: RunFolder, home: Path, url: str, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own: the client reads its variables when it is imported."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    variables |= {"HF_HOME": str(home), "HF_ENDPOINT": url, "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": TOKEN, **more}
    variables = {name: value for name, value in variables.items() if value}
    command = [sys.executable, "-m", "streamrl.services.cli.main", "export", str(run.path), *words]
    return subprocess.run(command, capture_output=True, text=True, env=variables, check=False)


def test_a_push_has_the_model_its_card_and_the_curve(run: RunFolder, hub: StandInHub, tmp_path: Path) -> None:
    done = streamrl(run, tmp_path, hub.url, "--push", REPO, "--private", "--to", str(tmp_path / "out"), "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["repo"], told["step"], told["url"]) == (REPO, 1, f"{hub.url}/{REPO}")
    pushed = hub.repos[REPO]
    assert set(pushed) >= FILES
    assert "streamrl.json" not in pushed, "our mark is ours"
    for name, content in pushed.items():
        assert content == (tmp_path / "out" / name).read_bytes(), name
    assert hub.messages == ["streamrl: run mine, step 1"]
    assert hub.private[REPO]


@pytest.mark.long
def test_pushing_again_goes_into_the_same_repository(run: RunFolder, hub: StandInHub, tmp_path: Path) -> None:
    for _ in range(2):
        done = streamrl(run, tmp_path, hub.url, "--push", REPO, "--to", str(tmp_path / "out"))
        assert done.returncode == 0, done.stderr
    assert list(hub.repos) == [REPO]
    assert not hub.private[REPO]


def test_a_dry_run_asks_nobody_and_says_what_would_be_pushed(run: RunFolder, hub: StandInHub, tmp_path: Path) -> None:
    words = ("--push", REPO, "--dry-run", "--to", str(tmp_path / "out"), "--json")
    done = streamrl(run, tmp_path, hub.url, *words, HF_TOKEN="", HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert set(told["would_push"]) >= FILES
    assert told["bytes"] == sum((tmp_path / "out" / name).stat().st_size for name in told["would_push"])
    assert hub.asked == []


def test_the_card_says_what_was_done(run: RunFolder, tmp_path: Path) -> None:
    record = EvaluationRecord(
        time_ns=1,
        name="gsm8k",
        step=1,
        version="0.1",
        scores={"exact_match,strict-match": 0.25},
        source="lm-eval 0.4.13",
    )
    append_evaluations(run.evaluations_path, [record])
    done = streamrl(run, tmp_path, "http://127.0.0.1:9", "--to", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    card = (tmp_path / "out" / "README.md").read_text()
    _, head, text = card.split("---\n", 2)
    metadata = yaml.safe_load(head)
    assert metadata["library_name"] == "transformers"
    assert metadata["model-index"][0]["results"][0]["metrics"] == [{"type": "exact_match,strict-match", "value": 0.25}]
    assert "| gsm8k | exact\\_match,strict-match | 0.25 | 1 |" in text
    assert "| held-out | score | 0.5 | 1 |" in text
    assert "![Reward and held-out score over the steps](reward.png)" in text
    assert 'preset = "tiny-qwen3"' in text
    assert "* weights: version 0.1 of run mine, step 1" in text
    assert "* streamrl " in text
    assert str(run.path) not in card, "no path of this machine"


@pytest.mark.parametrize(
    ("words", "variables", "code", "told"),
    [
        (["--push", "my model"], {}, 2, "is no name of a repository"),
        (["--push", "a/b/c"], {}, 2, "is no name of a repository"),
        (["--push", "mine"], {}, 2, "names no owner; give OWNER/mine"),
        (["--push", REPO], {"HF_TOKEN": ""}, 2, "there is no token of the hub: set HF_TOKEN"),
        (["--push", REPO], {"HF_TOKEN": "hf_wrong"}, 2, "the hub does not know the token"),
        (
            ["--push", "others/model"],
            {},
            2,
            "the token has no right to write to others/model (You don't have the rights",
        ),
        (["--push", REPO], {"HF_HUB_OFFLINE": "1"}, 2, "HF_HUB_OFFLINE is set"),
        (["--dry-run"], {}, 2, "--private and --dry-run are of a push"),
    ],
)
def test_bad_input_is_one_message_before_anything_is_written(
    run: RunFolder, hub: StandInHub, tmp_path: Path, words: list[str], variables: dict[str, str], code: int, told: str
) -> None:
    out = tmp_path / "out"
    done = streamrl(run, tmp_path, hub.url, *words, "--to", str(out), **variables)
    assert (done.returncode, done.stdout) == (code, "")
    assert told in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert not out.exists()
    assert hub.repos == {}


@pytest.mark.long
def test_a_hub_that_breaks_in_the_middle_loses_nothing(run: RunFolder, tmp_path: Path) -> None:
    with serving(StandInHub(breaks_at="/commit/")) as hub:
        out = tmp_path / "out"
        done = streamrl(run, tmp_path, hub.url, "--push", REPO, "--to", str(out))
    assert done.returncode == 4
    assert f"what is exported is in {out}" in done.stderr
    assert (out / "model.safetensors").exists()


def test_a_hub_that_is_not_there_is_said_so(run: RunFolder, tmp_path: Path) -> None:
    done = streamrl(run, tmp_path, "http://127.0.0.1:9", "--push", REPO, "--to", str(tmp_path / "out"))
    assert done.returncode == 4
    assert "the hub does not answer" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_without_a_version_has_nothing_to_push(tmp_path: Path, hub: StandInHub) -> None:
    path = tmp_path / "runs" / "new"
    path.mkdir(parents=True)
    run = RunFolder.create(path, "new")
    done = streamrl(run, tmp_path, hub.url, "--push", REPO)
    assert done.returncode == 2
    assert "has no checkpoint to export yet" in done.stderr
    assert hub.repos == {}
