"""A learner rank with a critic: what it begins with, what its checkpoints hold, and what it refuses."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from support.learner.probe_learner import built, open_run, rows_in, train
from support.learner.turns import make_model

from streamrl.config import dump
from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.learner import CriticConfig, ExecutionConfig, LearnerConfig, OptimizerConfig
from streamrl.config.schema.run import CheckpointConfig, Config, ModelConfig, WarmupConfig
from streamrl.errors import ConfigError, DataError
from streamrl.learner.checkpoint.checkpoint import CheckpointInfo, find_newest
from streamrl.learner.checkpoint.digest import tensor_digest
from streamrl.learner.model.value_model import HEAD
from streamrl.models.load import load_model, prepare_model_folder
from streamrl.models.tokenizer import write_character_tokenizer
from streamrl.services.commands.exchange.export import export_newest
from streamrl.services.launch.preflight import check
from streamrl.services.learner.core import LearnerCore
from streamrl.services.run.folder import RunFolder
from streamrl.types import FrameRef

RATE = OptimizerConfig(lr=1e-3, warmup_steps=1)


def config_of(*, steps: int = 6, critic: CriticConfig | None = None, warmup: WarmupConfig | None = None) -> Config:
    return Config(
        model=ModelConfig(preset="tiny-qwen3"),
        warmup=warmup or WarmupConfig(),
        learner=LearnerConfig(
            steps=steps,
            mini_batches=2,
            ppo_epochs=2,
            optimizer=RATE,
            algorithm=AlgorithmConfig(advantage="gae"),
            critic=critic or CriticConfig(optimizer=RATE),
        ),
        checkpoint=CheckpointConfig(keep=1),
    )


def critic_weights(core: LearnerCore) -> dict[str, torch.Tensor]:
    return {name: whole.clone() for name, whole in core._auxiliary._backend.policy.iter_weights()}


def policy_weights(core: LearnerCore) -> dict[str, torch.Tensor]:
    return {name: whole.clone() for name, whole in core._policy.iter_weights()}


class Trained(NamedTuple):
    """A run folder with the checkpoint of three steps; the metrics of the next three, and the weights after them."""

    folder: Path
    written: list[FrameRef]
    later: list[dict[str, float]]
    digests: list[str]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder, config = tmp_path_factory.mktemp("trained") / "run", config_of()
    with built(config, folder) as core:
        written = rows_in(config, folder)
        train(core, written, range(3))
        core.save()
        later = train(core, written, range(3, 6))
        return Trained(folder, written, later, [core.weight_digest(), core._auxiliary._backend.policy.weight_digest()])


def critic_passes(folder: Path, execution: ExecutionConfig) -> int:
    """How often attention is computed in a layer of the critic, in one step of two mini-batches and two epochs."""
    config = config_of()
    config = replace(config, learner=replace(config.learner, execution=execution))
    with built(config, folder) as core:
        passes: list[None] = []
        layer = core._auxiliary._backend.policy.module.model.layers[0]
        layer.self_attn.o_proj.register_forward_hook(lambda *_: passes.append(None))
        train(core, rows_in(config, folder), range(1))
        return len(passes)


def test_the_critic_is_computed_as_the_policy_is(tmp_path: Path) -> None:
    once = critic_passes(tmp_path / "once", ExecutionConfig())
    again = critic_passes(tmp_path / "again", ExecutionConfig(activation_checkpointing=True))
    assert again == once + 2 * 2  # in the backward of each update


def test_a_checkpoint_holds_policy_and_critic_with_their_moments_and_counts_both(trained: Trained) -> None:
    folder = trained.folder
    info = find_newest(folder / "checkpoints").newest
    assert info is not None
    saved = {name: digest for entry in info.manifest.files for name, digest in entry.tensors.items()}
    kinds = ("model", "exp_avg", "exp_avg_sq")
    assert {name.rpartition("/")[0] for name in saved} == {*kinds, *(f"critic/{kind}" for kind in kinds)}
    assert f"critic/exp_avg/{HEAD}" in saved
    with built(config_of(), folder) as core:
        held = {name: tensor_digest(tensor) for name, tensor in core._state_tensors()}
        assert held == saved
        assert core.state_bytes() == sum(tensor.nbytes for _, tensor in core._state_tensors())
        assert core.step == 3


def test_a_resumed_learner_with_a_critic_goes_on_to_the_bit(trained: Trained) -> None:
    with built(config_of(), trained.folder) as core:
        again = train(core, trained.written, range(3, 6))
        assert again == trained.later
        assert [core.weight_digest(), core._auxiliary._backend.policy.weight_digest()] == trained.digests
    assert trained.later[-1]["critic/loss"] < trained.later[0]["critic/loss"]


@pytest.mark.parametrize("lost", [f"critic/model/{HEAD}", f"critic/exp_avg_sq/{HEAD}"])
def test_a_tensor_of_the_critic_that_is_lost_on_its_way_is_named(
    lost: str, trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = CheckpointInfo.tensor

    def losing(info: CheckpointInfo, name: str) -> torch.Tensor:
        tensor = real(info, name)
        return torch.zeros_like(tensor) if name == lost else tensor

    monkeypatch.setattr(CheckpointInfo, "tensor", losing)
    with pytest.raises(DataError, match=rf"1 tensors .*the first of them {lost}"), built(config_of(), trained.folder):
        pass


def test_a_critic_begins_with_what_the_warm_up_left_and_a_head_of_zero(tmp_path: Path) -> None:
    warmup = WarmupConfig(max_steps=2, eval_every=2, batch_size=8, lr=1e-2, target_score=1.0)
    config, folder = config_of(warmup=warmup), tmp_path / "run"
    with built(config, folder) as core:
        before = critic_weights(core)
        core.warm_up(lambda _: None)
        core.save()
        after, policy = critic_weights(core), policy_weights(core)
        assert not torch.equal(before["norm.weight"], after["norm.weight"])
        assert after.pop(HEAD).count_nonzero() == 0
        assert {f"model.{name}" for name in after} == set(policy)
        assert all(torch.equal(whole, policy[f"model.{name}"]) for name, whole in after.items())
        written = rows_in(config, folder)
        first = train(core, written, range(1))
    with built(config, folder) as core:
        assert train(core, written, range(1)) == first


def test_a_critic_may_begin_with_another_model_of_the_same_tokenizer(tmp_path: Path) -> None:
    other = tmp_path / "other"
    prepare_model_folder(ModelConfig(preset="tiny-qwen3"), 7, other)
    config = config_of(critic=CriticConfig(path=str(other), optimizer=RATE))
    with built(config, tmp_path / "run") as core:
        mine, policy = critic_weights(core), policy_weights(core)
        assert not torch.equal(mine["embed_tokens.weight"], policy["model.embed_tokens.weight"])
        (metrics,) = train(core, rows_in(config, tmp_path / "run"), range(1))
    assert np.isfinite(metrics["critic/loss"])


def test_a_critic_of_another_vocabulary_is_refused_with_the_token(tmp_path: Path) -> None:
    other = tmp_path / "other"
    make_model().save_pretrained(other)
    write_character_tokenizer("abcdefgh=", 16, other)
    config = config_of(critic=CriticConfig(path=str(other), optimizer=RATE))
    core = LearnerCore(open_run(config, tmp_path / "run"), config, 0, tmp_path / "store")
    try:
        with pytest.raises(ConfigError, match=r"learner.critic.path: .*other has another vocabulary.*same tokenizer"):
            core.build()
    finally:
        core._group.close()


def test_a_critic_of_another_vocabulary_is_refused_before_anything_starts(tmp_path: Path) -> None:
    folder = tmp_path / "critic"
    prepare_model_folder(ModelConfig(preset="tiny-qwen3"), 0, folder)
    config = config_of(critic=CriticConfig(path=str(folder), optimizer=RATE))
    check(config)
    write_character_tokenizer("abcdefgh=", 16, folder)
    with pytest.raises(ConfigError, match=r"learner\.critic\.path: .*critic has another vocabulary"):
        check(config)


def test_an_export_of_the_newest_checkpoint_is_the_policy_alone(trained: Trained, tmp_path: Path) -> None:
    config = config_of()
    (trained.folder / "config.toml").write_text(dump(config))
    assert export_newest(RunFolder.open(trained.folder), tmp_path / "export") == 3
    exported = dict(load_model(tmp_path / "export", "float32").named_parameters())
    with built(config, trained.folder) as core:
        policy = policy_weights(core)
    assert exported.keys() == policy.keys()
    assert all(torch.equal(exported[name], whole) for name, whole in policy.items())


def test_a_checkpoint_of_a_run_without_a_critic_is_refused(tmp_path: Path) -> None:
    config = Config(model=ModelConfig(preset="tiny-qwen3"), learner=LearnerConfig(steps=6, optimizer=RATE))
    with built(config, tmp_path / "run") as core:
        train(core, rows_in(config, tmp_path / "run"), range(1))
        core.save()
    with pytest.raises(DataError, match="has no critic"), built(config_of(), tmp_path / "run"):
        pass
