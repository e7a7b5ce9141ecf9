"""`streamrl dpo`: what a training on preference pairs comes to, and the folder that it leaves."""

import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from support.rewards.reward_models import copies, policy_folder, write_pairs
from transformers import AutoModelForCausalLM

from streamrl.learner.supervised.dpo_training import DpoTraining, trainer
from streamrl.learner.supervised.pair_training import PairProgress
from streamrl.learner.supervised.preference_pairs import (
    EncodedPair,
    answer_rows,
    encode_pairs,
    pair_rows,
    read_pairs,
    split_pairs,
)
from streamrl.models.load import load_model
from streamrl.models.tokenizer import load_tokenizer
from streamrl.services.cli.main import run_app
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
def test_the_command_writes_a_model_of_transformers(dtype: str, tmp_path: Path) -> None:
    path = write_pairs(tmp_path / "pairs.jsonl", copies(60, 5))
    words = ["--model", "tiny-qwen3", "--out", str(tmp_path / "out"), "--steps", "5", "--lr", "1e-3", "--dtype", dtype]
    assert run_app(["dpo", str(path), *words]) == 0
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model.dtype == getattr(torch, dtype)
    begin = load_model(policy_folder(tmp_path), dtype)
    assert not torch.equal(model.get_input_embeddings().weight, begin.get_input_embeddings().weight)
    load_tokenizer(tmp_path / "out")
