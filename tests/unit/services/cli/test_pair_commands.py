"""`streamrl reward-model` and `streamrl dpo`: what they print and write, and what each does about mistakes."""

import json
from pathlib import Path

import pytest
from support.rewards.reward_models import copies, write_pairs

from streamrl.services.cli.main import run_app

COMMANDS = ["reward-model", "dpo"]
LONG = {"prompt": "1=", "chosen": "1" * 66, "rejected": "2"}
LINE_3 = "line 3: 70 tokens, and the model takes 64. Shorten these, or leave them out with --skip-long"


@pytest.mark.parametrize("command", COMMANDS)
def test_each_look_is_printed_and_what_was_written(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_pairs(tmp_path / "pairs.jsonl", copies(60, 5))
    arguments = [command, str(path), "--model", "tiny-qwen3", "--out", str(tmp_path / "out")]
    settings = ["--steps", "5", "--eval-every", "2", "--batch-size", "8", "--lr", "1e-3", "--held-out", "0.25"]
    assert run_app([*arguments, *settings]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines[:4]] == ["0/5", "2/5", "4/5", "5/5"]
    assert lines[0] == "step 0/5  held-out accuracy 0.500, chosen above rejected by 0.000"
    assert run_app([*arguments, *settings, "--json"]) == 0
    *looks, end = map(json.loads, capsys.readouterr().out.splitlines())
    assert [look["step"] for look in looks] == [0, 2, 4, 5]
    assert looks[0]["loss"] is None
    assert (end["pairs_trained"] + end["pairs_held_out"], end["pairs_left_out"]) == (60, 0)
    assert end["held_out_accuracy"] == looks[-1]["accuracy"]
    architecture = {"reward-model": "Qwen3ForSequenceClassification", "dpo": "Qwen3ForCausalLM"}
    assert json.loads((tmp_path / "out/config.json").read_text())["architectures"] == [architecture[command]]


@pytest.mark.parametrize(
    ("command", "more", "says"),
    [
        *((command, ["--steps", "0"], "--steps: expected `int` >= 1") for command in COMMANDS),
        *((command, ["--held-out", "1"], "--held-out: expected `float` < 1.0") for command in COMMANDS),
        *((command, ["--batch-size", "-3"], "--batch-size: expected `int` >= 1") for command in COMMANDS),
        *((command, ["--model", "nothing"], "--model: nothing is no folder and no preset") for command in COMMANDS),
        *((command, ["--out", "TAKEN"], "was not written by streamrl") for command in COMMANDS),
        *((command, [], LINE_3) for command in COMMANDS),
        ("reward-model", ["--centre", "-1"], "--centre: expected `float` >= 0.0"),
        ("dpo", ["--beta", "0"], "--beta: expected `float` > 0.0"),
        ("dpo", ["--label-smoothing", "0.5"], "--label-smoothing: expected `float` < 0.5"),
    ],
)
def test_a_mistake_is_one_message_before_anything_is_computed(
    command: str, more: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("mine")
    path = write_pairs(tmp_path / "pairs.jsonl", [*copies(2, 5), LONG])
    given = {"--model": "tiny-qwen3", "--out": str(tmp_path / "out"), **dict(zip(more[::2], more[1::2], strict=True))}
    words = [word for pair in given.items() for word in pair]
    code = run_app([command, str(path), *(word.replace("TAKEN", str(tmp_path / "taken")) for word in words)])
    out, err = capsys.readouterr()
    assert code == 2
    assert says in err
    assert "step" not in out
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_training_that_diverges_writes_nothing_and_names_the_rate(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_pairs(tmp_path / "pairs.jsonl", copies(40, 5))
    words = ["--model", "tiny-qwen3", "--out", str(tmp_path / "out"), "--steps", "5", "--lr", "inf"]
    assert run_app([command, str(path), *words]) == 4
    assert "nothing was written; take a lower --lr than inf" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_long_pairs_are_left_out_when_that_is_said(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_pairs(tmp_path / "pairs.jsonl", [*copies(20, 5), LONG])
    words = ["--model", "tiny-qwen3", "--out", str(tmp_path / "out"), "--steps", "1", "--skip-long", "--json"]
    assert run_app([command, str(path), *words]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["pairs_left_out"] == 1
