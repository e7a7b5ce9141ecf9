"""A learner rank with an implicit reward model: what it begins with, what its checkpoints hold, what it refuses."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pytest
import torch
from support.learner.probe_learner import REWARDS, built, lease, rows_in, train

from streamrl.clock import SystemClock
from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.learner import LearnerConfig, OptimizerConfig, OverlongConfig, PrimeConfig
from streamrl.config.schema.run import CheckpointConfig, Config, ModelConfig, WarmupConfig
from streamrl.errors import ConfigError, DataError
from streamrl.learner.checkpoint.checkpoint import CheckpointInfo, find_newest
from streamrl.learner.checkpoint.digest import tensor_digest
from streamrl.observability.timeline import StepTimer
from streamrl.services.learner.core import LearnerCore
from streamrl.services.learner.step_plan import make_plan
from streamrl.types import FrameRef

NORM = "prime/model/model.norm.weight"
PHASES = ("read", "pack", "forward_backward", "optimizer")
UNREAD = FrameRef("nowhere", 0, 0, 0, 0, 0)
RATE = OptimizerConfig(lr=1e-3, warmup_steps=1)


def config_of(*, algorithm: AlgorithmConfig | None = None, warmup: WarmupConfig | None = None) -> Config:
    return Config(
        model=ModelConfig(preset="tiny-qwen3"),
        warmup=warmup or WarmupConfig(),
        learner=LearnerConfig(
            steps=6,
            mini_batches=2,
            ppo_epochs=2,
            optimizer=RATE,
            algorithm=algorithm or AlgorithmConfig(advantage="prime"),
            prime=PrimeConfig(beta=0.5, optimizer=RATE),
        ),
        checkpoint=CheckpointConfig(keep=1),
    )


def weights(core: LearnerCore) -> dict[str, dict[str, torch.Tensor]]:
    """Of the policy and of the implicit reward model."""
    models = {"policy": core._policy, "prime": core._auxiliary._backend.policy}
    return {name: {key: whole.clone() for key, whole in model.iter_weights()} for name, model in models.items()}


class Trained(NamedTuple):
    """A run folder with the checkpoint of three steps; the metrics of the next three, and the weights after them."""

    folder: Path
    written: list[FrameRef]
    first: list[dict[str, float]]
    later: list[dict[str, float]]
    digests: list[str]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder, config = tmp_path_factory.mktemp("trained") / "run", config_of()
    with built(config, folder) as core:
        written = rows_in(config, folder)
        first = train(core, written, range(3))
        core.save()
        later = train(core, written, range(3, 6))
        return Trained(
            folder, written, first, later, [core.weight_digest(), core._auxiliary._backend.policy.weight_digest()]
        )


def test_a_checkpoint_holds_policy_and_model_with_their_moments_and_not_the_reference(trained: Trained) -> None:
    info = find_newest(trained.folder / "checkpoints").newest
    assert info is not None
    saved = {name: digest for entry in info.manifest.files for name, digest in entry.tensors.items()}
    kinds = ("model", "exp_avg", "exp_avg_sq")
    assert {name.split("/")[:-1][-1] for name in saved} == set(kinds)
    assert {name.partition("/")[0] for name in saved} == {*kinds, "prime"}
    assert NORM in saved
    with built(config_of(), trained.folder) as core:
        held = {name: tensor_digest(tensor) for name, tensor in core._state_tensors()}
        assert held == saved
        assert core.state_bytes() == sum(tensor.nbytes for _, tensor in core._state_tensors())


def test_a_resumed_learner_with_an_implicit_reward_model_goes_on_to_the_bit(trained: Trained) -> None:
    with built(config_of(), trained.folder) as core:
        again = train(core, trained.written, range(3, 6))
        assert again == trained.later
        assert [core.weight_digest(), core._auxiliary._backend.policy.weight_digest()] == trained.digests


def test_it_learns_from_what_it_is_given_and_tells(trained: Trained) -> None:
    metrics = [*trained.first, *trained.later]
    assert metrics[0]["prime/reward_mean"] == 0.0
    assert all(row["prime/reward_mean"] != 0.0 for row in metrics[1:])
    assert metrics[-1]["prime/loss"] < metrics[0]["prime/loss"]
    assert metrics[-1]["prime/accuracy"] > 0.5


def test_groups_of_equal_rewards_learn_from_the_rewards_of_tokens_alone(tmp_path: Path) -> None:
    config, folder = config_of(), tmp_path / "run"
    with built(config, folder) as core:
        written, timer = rows_in(config, folder), StepTimer(SystemClock(), PHASES)
        leases = [replace(lease(step, written), rewards=np.ones_like(REWARDS)) for step in range(2)]
        first, second = (core.train(core.plan(one), timer) for one in leases)
    assert (first["grad/norm"], first["prime/grad_norm"] > 0.0) == (0.0, True)
    assert second["grad/norm"] > 0.0


def test_a_tensor_of_the_model_that_is_lost_on_its_way_is_named(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = CheckpointInfo.tensor

    def losing(info: CheckpointInfo, name: str) -> torch.Tensor:
        tensor = real(info, name)
        return torch.zeros_like(tensor) if name == NORM else tensor

    monkeypatch.setattr(CheckpointInfo, "tensor", losing)
    with pytest.raises(DataError, match=rf"1 tensors .*the first of them {NORM}"), built(config_of(), trained.folder):
        pass


def test_it_begins_with_what_the_warm_up_left_and_so_does_the_reference(tmp_path: Path) -> None:
    warmup = WarmupConfig(max_steps=2, eval_every=2, batch_size=8, lr=1e-2, target_score=1.0)
    config, folder = config_of(warmup=warmup), tmp_path / "run"
    with built(config, folder) as core:
        before = weights(core)["prime"]
        core.warm_up(lambda _: None)
        core.save()
        after = weights(core)
        assert not torch.equal(before["model.norm.weight"], after["prime"]["model.norm.weight"])
        assert all(torch.equal(whole, after["policy"][name]) for name, whole in after["prime"].items())
        written = rows_in(config, folder)
        first = train(core, written, range(1))
    assert first[0]["prime/reward_mean"] == 0.0
    with built(config, folder) as core:
        assert train(core, written, range(1)) == first


def test_a_checkpoint_of_a_run_without_it_is_refused(tmp_path: Path) -> None:
    config = config_of(algorithm=AlgorithmConfig(advantage="rloo"))
    with built(config, tmp_path / "run") as core:
        train(core, rows_in(config, tmp_path / "run"), range(1))
        core.save()
    with pytest.raises(DataError, match="has no implicit reward model"), built(config_of(), tmp_path / "run"):
        pass


def test_a_lease_with_a_reward_that_is_no_probability_is_refused_before_anything_is_read() -> None:
    wrong = replace(lease(0, [UNREAD]), rewards=np.full_like(REWARDS, 2.0))
    with pytest.raises(ConfigError, match=r'row 0 \(group 0\) is 2.0.*"prime" learns rewards from 0 to 1'):
        make_plan(wrong, config_of(), 32)


def test_rows_that_were_cut_off_have_a_part_in_the_outcomes_of_others_and_are_not_trained() -> None:
    overlong = OverlongConfig(mask_truncated=True)
    config = msgspec.structs.replace(
        config_of(), learner=msgspec.structs.replace(config_of().learner, overlong=overlong)
    )
    one = lease(0, [UNREAD])
    assert one.truncated.any()
    plan, all_trained = make_plan(one, config, 32), make_plan(one, config_of(), 32)
    assert plan.advantages == all_trained.advantages
    assert np.frombuffer(plan.valid, np.uint8).tolist() == (~one.truncated).tolist()
