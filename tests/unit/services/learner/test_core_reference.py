"""A learner held to another policy, as a whole: checkpoints of an average, prices in rewards, vocabularies."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from support.learner import probe_learner
from support.learner.probe_learner import GROUP_SIZE, GROUPS, REWARDS, built, lease, write_rows

from streamrl.algorithms.advantages.outcome import advantage_of
from streamrl.config import Config
from streamrl.config.schema.algorithm import AlgorithmConfig, ReferenceConfig
from streamrl.config.schema.learner import LearnerConfig, OptimizerConfig
from streamrl.config.schema.run import ModelConfig, TaskConfig
from streamrl.errors import ConfigError
from streamrl.learner.batch.packing import pack
from streamrl.learner.checkpoint.digest import weight_digest
from streamrl.learner.model.policy import PolicyModel
from streamrl.models.load import load_model, prepare_model_folder
from streamrl.models.tokenizer import load_tokenizer, write_character_tokenizer
from streamrl.models.vocabulary import require_same_vocabulary
from streamrl.observability.timeline import StepTimer
from streamrl.services.launch.preflight import check
from streamrl.services.learner.step_plan import shares_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder."""
    return prepare_model_folder(ModelConfig(preset="tiny-qwen3"), 0, tmp_path_factory.mktemp("models") / "model")


def configured(folder: Path, **algorithm: object) -> Config:
    learner = LearnerConfig(
        optimizer=OptimizerConfig(lr=1e-3, warmup_steps=0), algorithm=AlgorithmConfig(**algorithm), steps=9
    )
    return Config(model=ModelConfig(path=str(folder)), learner=learner)


async def test_a_checkpoint_holds_the_average_and_a_learner_that_is_built_anew_has_it(folder, tmp_path) -> None:
    config = configured(folder, kl_coef=0.1, reference=ReferenceConfig(kind="average", every=2, decay=0.5))
    written = await write_rows(config, tmp_path, 1)
    timer = StepTimer(probe_learner.SystemClock(), ("read", "pack", "forward_backward", "optimizer"))
    with built(config, tmp_path) as core:
        for step in range(3):
            core.train(core.plan(lease(step, written)), timer)
        core.save()
        assert core.state_bytes() == sum(tensor.nbytes for _, tensor in core._backend.state_tensors())
        held = weight_digest(core._backend.state_tensors())
        expected = core.train(core.plan(lease(3, written)), timer)
    run = msgspec.structs.replace(config, name="again")
    (tmp_path / "again").mkdir()
    (tmp_path / "checkpoints").rename(tmp_path / "again" / "checkpoints")
    with built(run, tmp_path / "again") as core:
        assert core.step == 3
        assert weight_digest(core._backend.state_tensors()) == held
        got = core.train(core.plan(lease(3, await write_rows(run, tmp_path / "again", 1))), timer)
    assert (got["loss/policy"], got["loss/kl"]) == (expected["loss/policy"], expected["loss/kl"])


@pytest.mark.parametrize("shares", [1, 3])
async def test_advantages_are_of_rewards_less_the_price_of_each_row(shares: int, folder, tmp_path, monkeypatch) -> None:
    other = tmp_path / "other"
    prepare_model_folder(ModelConfig(preset="tiny-qwen3"), 1, other)
    reference = ReferenceConfig(kind="path", path=str(other))
    config = configured(folder, kl_coef=0.05, kl_in="reward", kl_estimator="k1", reference=reference)
    config = msgspec.structs.replace(config, learner=msgspec.structs.replace(config.learner, shares=shares))
    written = await write_rows(config, tmp_path, 1)
    timer = StepTimer(probe_learner.SystemClock(), ("read", "pack", "forward_backward", "optimizer"))
    trained = []
    with built(config, tmp_path) as core:
        step_batch = core._backend.step_batch
        monkeypatch.setattr(
            core._backend, "step_batch", lambda cut, epochs: trained.append(cut[0].shares) or step_batch(cut, epochs)
        )
        plan = core.plan(lease(0, written))
        (parts,) = shares_of(plan, 0, config)
        rows = [core._rows(plan, part) for part in parts]
        metrics = core.train(plan, timer)
    teacher, distance, tokens = PolicyModel(load_model(other, "float32")), np.zeros(GROUPS * GROUP_SIZE), 0
    for part, row in zip(parts, rows, strict=True):
        for packed in pack(row, np.zeros(row.num_rows), 10**6):
            difference = (packed.rollout_logprobs - teacher(packed, 1.0)[0].detach()).double().numpy()
            np.add.at(distance, part.place[packed.rows.numpy()], difference)
            tokens += packed.num_targets
    group_N = np.repeat(np.arange(GROUPS), GROUP_SIZE)
    expected = advantage_of("grpo", REWARDS - 0.05 * distance, np.ones(12, bool), group_N, np.ones(12, np.int64))
    got = np.zeros(12)
    for part, packs in zip(parts, trained[0], strict=True):
        for packed in packs:
            got[part.place[packed.rows.numpy()]] = packed.advantages.numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
    plain = advantage_of("grpo", REWARDS, np.ones(12, bool), group_N, np.ones(12, np.int64))
    assert np.abs(got - plain).max() > 0.01
    assert metrics["reward/kl"] == pytest.approx(distance.sum() / tokens, rel=1e-4)
    assert "loss/kl" not in metrics


def other_vocabulary(folder: Path, characters: str) -> Path:
    folder.mkdir()
    write_character_tokenizer(characters, 64, folder)
    return folder


def test_a_reference_of_another_vocabulary_is_refused_and_names_a_token(tmp_path: Path) -> None:
    one, two = other_vocabulary(tmp_path / "one", "abc"), other_vocabulary(tmp_path / "two", "bac")
    assert len(load_tokenizer(one).vocabulary()) == len(load_tokenizer(two).vocabulary())
    require_same_vocabulary(one, one)
    with pytest.raises(ConfigError, match=r"two has another .* 2 tokens differ, among them 'a', which is \d+ "):
        require_same_vocabulary(one, two)
    with pytest.raises(ConfigError, match="'d', which is no id here"):
        require_same_vocabulary(one, other_vocabulary(tmp_path / "three", "abcd"))


def test_another_vocabulary_is_refused_before_a_run_and_by_the_learner(folder: Path, tmp_path: Path) -> None:
    other = other_vocabulary(tmp_path / "other", "abc")
    config = configured(folder, kl_coef=0.1, reference=ReferenceConfig(kind="path", path=str(other)))
    with pytest.raises(ConfigError, match="another vocabulary"):
        check(msgspec.structs.replace(config, task=TaskConfig(name="arithmetic")))
    with pytest.raises(ConfigError, match="another vocabulary"), built(config, tmp_path):
        pass
