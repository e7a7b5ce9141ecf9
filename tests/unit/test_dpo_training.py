"""`streamrl dpo`: what a training on preference pairs comes to, and the folder that it leaves."""

import json
import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from reward_models import copies, policy_folder, write_pairs
from transformers import AutoModelForCausalLM

from services.cli import run_app
from streamrl.learner.dpo_training import DpoTraining, trainer
from streamrl.learner.pair_training import PairProgress
from streamrl.learner.preference_pairs import EncodedPair, answer_rows, encode_pairs, pair_rows, read_pairs, split_pairs
from streamrl.models.load import load_model
from streamrl.models.tokenizer import load_tokenizer
from streamrl.types import TokenOrigin

QUICK = DpoTraining(steps=60, batch_size=64, lr=1e-3, eval_every=20)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return policy_folder(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def pairs(source: Path, tmp_path_factory: pytest.TempPathFactory) -> list[EncodedPair]:
    path = write_pairs(tmp_path_factory.mktemp("pairs") / "pairs.jsonl", copies(1500, 11))
    return encode_pairs(read_pairs(path), load_tokenizer(source), path)


def trained(
    source: Path, pairs: list[EncodedPair], settings: DpoTraining
) -> tuple[list[PairProgress], dict[str, torch.Tensor]]:
    looks: list[PairProgress] = []
    sides = split_pairs(pairs, settings.held_out)
    with trainer(partial(load_model, source, "float32"), settings, *sides) as training:
        training.run(looks.append)
        return looks, {name: weight.clone() for name, weight in training.weights()}


def test_the_rows_of_pairs_train_the_answers_and_those_of_scores_one_token_behind_them(
    pairs: list[EncodedPair],
) -> None:
    some = pairs[:3]
    for rows, origins in (
        (answer_rows(some), (TokenOrigin.PROMPT, TokenOrigin.SAMPLED)),
        (pair_rows(some), (TokenOrigin.PROMPT, TokenOrigin.ENVIRONMENT, TokenOrigin.SAMPLED)),
    ):
        behind = [np.zeros(1, np.int32)] * (len(origins) - 2)
        answers = [(one, text) for one in some for text in (one.chosen, one.rejected)]
        for row, (pair, answer) in enumerate(answers):
            start, end = rows.offsets[row : row + 2]
            parts = [pair.prompt, answer, *behind]
            assert rows.token_ids[start:end].tolist() == np.concatenate(parts).tolist()
            expected = [origin for origin, part in zip(origins, parts, strict=True) for _ in part]
            assert rows.token_origin[start:end].tolist() == expected


def test_a_training_comes_to_prefer_the_right_answer_to_prompts_that_it_has_not_seen(
    source: Path, pairs: list[EncodedPair]
) -> None:
    looks, _ = trained(source, pairs, QUICK)
    assert [look.step for look in looks] == [0, 20, 40, 60]
    assert (looks[0].accuracy, looks[0].distance) == (0.5, 0.0)
    assert looks[-1].accuracy > 0.8
    assert looks[-1].loss < looks[1].loss < math.log(2)


def test_the_same_seed_makes_the_same_weights_and_another_seed_or_option_others(
    source: Path, pairs: list[EncodedPair]
) -> None:
    short = {"steps": 4, "batch_size": 8, "lr": 1e-3}
    settings = [short, short, {**short, "seed": 1}, {**short, "beta": 1.0}, {**short, "label_smoothing": 0.4}]
    first, again, *others = (trained(source, pairs, DpoTraining(**one))[1] for one in settings)
    assert all(torch.equal(first[name], again[name]) for name in first)
    for other in others:
        assert not all(torch.equal(first[name], other[name]) for name in first)


# ---- the command


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_command_prints_each_look_and_writes_a_model_of_transformers(
    dtype: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_pairs(tmp_path / "pairs.jsonl", copies(60, 5))
    arguments = ["dpo", str(path), "--model", "tiny-qwen3", "--out", str(tmp_path / "out"), "--dtype", dtype]
    settings = ["--steps", "5", "--eval-every", "2", "--batch-size", "8", "--lr", "1e-3", "--held-out", "0.25"]
    assert run_app([*arguments, *settings]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines[:4]] == ["0/5", "2/5", "4/5", "5/5"]
    assert lines[0] == "step 0/5  held-out accuracy 0.500, chosen above rejected by 0.000"
    assert run_app([*arguments, *settings, "--json"]) == 0
    *looks, end = map(json.loads, capsys.readouterr().out.splitlines())
    assert [look["step"] for look in looks] == [0, 2, 4, 5]
    assert (end["pairs_trained"] + end["pairs_held_out"], end["pairs_left_out"]) == (60, 0)
    assert end["held_out_accuracy"] == looks[-1]["accuracy"]
    model = AutoModelForCausalLM.from_pretrained(end["folder"])
    assert model.dtype == getattr(torch, dtype)
    begin = load_model(policy_folder(tmp_path), dtype)
    assert not torch.equal(model.get_input_embeddings().weight, begin.get_input_embeddings().weight)
    load_tokenizer(end["folder"])


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--beta", "0"], "--beta: expected `float` > 0.0"),
        (["--label-smoothing", "0.5"], "--label-smoothing: expected `float` < 0.5"),
        (["--model", "nothing"], "--model: nothing is no folder and no preset; there is tiny-qwen3"),
        (["--out", "TAKEN"], "was not written by streamrl"),
        ([], "line 3: 70 tokens, and the model takes 64. Shorten these, or leave them out with --skip-long"),
    ],
)
def test_a_mistake_is_one_message_before_anything_is_computed(
    more: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("mine")
    long = {"prompt": "1=", "chosen": "1" * 66, "rejected": "2"}
    path = write_pairs(tmp_path / "pairs.jsonl", [*copies(2, 5), long])
    given = {"--model": "tiny-qwen3", "--out": str(tmp_path / "out"), **dict(zip(more[::2], more[1::2], strict=True))}
    words = [word for pair in given.items() for word in pair]
    code = run_app(["dpo", str(path), *(word.replace("TAKEN", str(tmp_path / "taken")) for word in words)])
    out, err = capsys.readouterr()
    assert code == 2
    assert says in err
    assert "step" not in out
    assert not (tmp_path / "out").exists()


def test_a_training_that_diverges_writes_nothing_and_names_the_rate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_pairs(tmp_path / "pairs.jsonl", copies(40, 5))
    words = ["--model", "tiny-qwen3", "--out", str(tmp_path / "out"), "--steps", "5", "--lr", "inf"]
    assert run_app(["dpo", str(path), *words]) == 4
    assert "nothing was written; take a lower --lr than inf" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
