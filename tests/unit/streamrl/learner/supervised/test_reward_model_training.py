"""Bradley-Terry on packs against one row at a time, what a training comes to, and the folder that it leaves."""

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from support.rewards.reward_models import copies, item_of, policy_folder, random_reward_model, write_pairs
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from streamrl.algorithms.aggregation import Denominators
from streamrl.algorithms.supervised import bradley_terry
from streamrl.config.schema.run import RewardModelConfig
from streamrl.errors import ConfigError, NonFiniteError
from streamrl.learner.model.value_model import ValueModel
from streamrl.learner.supervised.pair_training import PairProgress
from streamrl.learner.supervised.preference_pairs import EncodedPair, encode_pairs, read_pairs, split_pairs
from streamrl.learner.supervised.reward_model import compare, pack_scored, reward_model_loss
from streamrl.learner.supervised.reward_training import RewardTraining, trainer
from streamrl.models.classifier import write_classifier
from streamrl.models.load import load_classifier, load_model
from streamrl.models.tokenizer import load_tokenizer
from streamrl.rewards.build import make_scorer

QUICK = RewardTraining(steps=120, batch_size=64, lr=2e-3, eval_every=40)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return policy_folder(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def pairs(source: Path, tmp_path_factory: pytest.TempPathFactory) -> list[EncodedPair]:
    path = write_pairs(tmp_path_factory.mktemp("pairs") / "pairs.jsonl", copies(1500, 11))
    return encode_pairs(read_pairs(path), load_tokenizer(source), path)


@pytest.fixture
def classifier(tmp_path: Path) -> Iterator[PreTrainedModel]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield load_classifier(random_reward_model(tmp_path / "random", seed=3, head=0.1))
    torch.set_num_threads(threads)


def value_model(classifier: PreTrainedModel, source: Path) -> ValueModel:
    """The same model as the learner has it."""
    model = ValueModel(load_model(source, "float32").base_model)
    model.load_state_dict(classifier.state_dict(), strict=True)
    return model


@pytest.mark.parametrize("budget", [20, 60, 8192])
@pytest.mark.parametrize("centre", [0.0, 0.05])
def test_the_loss_of_packs_is_that_of_the_rows_under_transformers_however_they_are_cut(
    budget: int, centre: float, classifier: PreTrainedModel, source: Path, pairs: list[EncodedPair]
) -> None:
    some = [pair._replace(margin=0.1 * number) for number, pair in enumerate(pairs[:9])]
    model = value_model(classifier, source)
    total = Denominators(18, 18)
    parts = [reward_model_loss(model, one, total, centre) for one in pack_scored(some, budget)]
    loss = sum(part[0] for part in parts)
    loss.backward()
    rows = [np.concatenate([pair.prompt, answer]) for pair in some for answer in (pair.chosen, pair.rejected)]
    scores = torch.cat([classifier(torch.from_numpy(row).long()[None]).logits[0] for row in rows])
    margins = torch.tensor([pair.margin for pair in some])
    slow = bradley_terry(scores[::2], scores[1::2], margins, centre).mean()
    slow.backward()
    assert loss.item() == pytest.approx(slow.item(), rel=1e-5)
    for name, param in classifier.named_parameters():
        torch.testing.assert_close(model.get_parameter(name).grad, param.grad, rtol=1e-3, atol=1e-6)
    sums = parts[0][1]
    for _, more in parts[1:]:
        sums = sums.plus(more)
    metrics, distances = sums.metrics(), scores[::2] - scores[1::2]
    assert metrics["accuracy"] == pytest.approx((distances > 0).float().mean().item())
    assert metrics["distance"] == pytest.approx(distances.mean().item(), rel=1e-4)
    assert metrics["score_abs_max"] == pytest.approx(scores.abs().max().item(), rel=1e-5)


def test_a_tie_is_half_right() -> None:
    distance_P, agreed_P = compare(torch.tensor([1.0, 0.0, 0.5, 0.5, 0.0, 2.0]))
    assert distance_P.tolist() == [1.0, 0.0, -2.0]
    assert agreed_P.tolist() == [1.0, 0.5, 0.0]


def trained(
    source: Path, pairs: list[EncodedPair], settings: RewardTraining
) -> tuple[list[PairProgress], dict[str, torch.Tensor]]:
    looks: list[PairProgress] = []
    with trainer(load_model(source, "float32"), settings, *split_pairs(pairs, settings.held_out)) as training:
        training.run(looks.append)
        return looks, {name: weight.clone() for name, weight in training.weights()}


@pytest.fixture(scope="module")
def learned(source: Path, pairs: list[EncodedPair]) -> tuple[list[PairProgress], dict[str, torch.Tensor]]:
    """A training that gets somewhere."""
    return trained(source, pairs, QUICK)


def test_a_training_comes_to_prefer_the_right_answer_to_prompts_that_it_has_not_seen(learned) -> None:
    looks, _ = learned
    assert [look.step for look in looks] == [0, 40, 80, 120]
    assert (looks[0].accuracy, looks[0].distance) == (0.5, 0.0)
    assert math.isnan(looks[0].loss)
    assert looks[-1].accuracy > 0.9
    assert looks[-1].distance > 2.0
    assert looks[-1].loss < looks[1].loss < math.log(2)


def test_the_same_seed_makes_the_same_weights_and_another_one_others(source: Path, pairs: list[EncodedPair]) -> None:
    short = RewardTraining(steps=5, batch_size=16, lr=1e-3)
    weights = [trained(source, pairs, settings)[1] for settings in (short, short, RewardTraining(**_with(short)))]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert not torch.equal(weights[0]["score.weight"], weights[2]["score.weight"])


def _with(settings: RewardTraining) -> dict[str, float]:
    return {"steps": settings.steps, "batch_size": settings.batch_size, "lr": settings.lr, "seed": 1}


def test_margin_and_centre_change_what_is_learned(source: Path, pairs: list[EncodedPair]) -> None:
    short = {"steps": 10, "batch_size": 16, "lr": 2e-3}
    wide = [pair._replace(margin=5.0) for pair in pairs]
    plain, wider, centred = (
        trained(source, given, RewardTraining(**short, **more))[0][-1]
        for given, more in ((pairs, {}), (wide, {}), (pairs, {"centre": 1.0}))
    )
    assert wider.loss > plain.loss + 2.0
    assert centred.loss != plain.loss


# ---- the folder


def test_train_write_score_a_right_answer_is_worth_more_than_a_wrong_one(learned, source: Path, tmp_path: Path) -> None:
    write_classifier(learned[1], source, tmp_path / "reward-model")
    tokenizer = load_tokenizer(source)
    scorer = make_scorer("reward_model", RewardModelConfig(path=str(tmp_path / "reward-model")))
    asked = range(0, 100, 7)
    right = scorer.score([item_of(f"{number}=", str(number), tokenizer) for number in asked])
    wrong = scorer.score([item_of(f"{number}=", str((number + 31) % 100), tokenizer) for number in asked])
    better = [one.reward > other.reward for one, other in zip(right, wrong, strict=True)]
    assert sum(better) >= len(better) - 1, list(zip(asked, better, strict=True))


def test_the_folder_is_one_of_transformers_with_the_weights_that_were_trained(
    learned, source: Path, tmp_path: Path
) -> None:
    write_classifier(learned[1], source, tmp_path / "out")
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    assert model.config.num_labels == 1
    assert all(torch.equal(model.get_parameter(name), weight) for name, weight in learned[1].items())
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    # An earlier one of ours is replaced.
    write_classifier(learned[1], source, tmp_path / "out")


def test_an_end_token_that_is_the_padding_token_too_is_no_padding_in_the_folder(
    learned, source: Path, tmp_path: Path
) -> None:
    other = tmp_path / "source"
    shutil.copytree(source, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "pad_token_id": config["eos_token_id"]}))
    write_classifier(learned[1], other, tmp_path / "out")
    write_classifier(learned[1], source, tmp_path / "plain")
    ids = torch.tensor([[1, 6, 5, 2]])
    scores = [load_classifier(tmp_path / name)(ids).logits.item() for name in ("out", "plain")]
    assert scores[0] == scores[1]


def test_a_weight_that_is_not_finite_is_named_and_what_was_there_stays(learned, source: Path, tmp_path: Path) -> None:
    write_classifier(learned[1], source, tmp_path / "out")
    before = (tmp_path / "out" / "model.safetensors").read_bytes()
    broken = {**learned[1], "score.weight": learned[1]["score.weight"] / 0.0}
    with pytest.raises(NonFiniteError, match=r"score\.weight"):
        write_classifier(broken, source, tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_of_somebody_else_is_not_replaced(learned, source: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="was not written by streamrl"):
        write_classifier(learned[1], source, tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "mine"
