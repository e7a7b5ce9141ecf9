"""What a rank of a layout keeps: of published models to the parameter, and by which key it becomes less."""

from collections.abc import Mapping
from typing import Any

import pytest
from support.megatron.published import PUBLISHED

from streamrl.config import Config
from streamrl.config.estimates.megatron_memory import DEVICE_BYTES, RankMemory, rank_memory
from streamrl.config.estimates.model_facts import ModelFacts, facts_of
from streamrl.config.schema.algorithm import AlgorithmConfig, ReferenceConfig
from streamrl.config.schema.learner import LearnerConfig, LoraConfig, MegatronConfig
from streamrl.config.schema.run import ModelConfig

NODE = 8
GPU = 80 * 2**30
SPREAD = {"tensor_parallel": 4, "sequence_parallel": True}
SHALLOW = {"recompute": "layers"}
LAYOUTS: list[tuple[str, int, Mapping[str, Any]]] = [
    ("8B", NODE, {**SPREAD}),
    ("30B-A3B", 4 * NODE, {**SPREAD, "expert_parallel": 8, **SHALLOW}),
    ("235B-A22B", 32 * NODE, {**SPREAD, "pipeline_parallel": 2, "expert_parallel": 32, **SHALLOW}),
]


def facts(name: str) -> ModelFacts:
    config, parameters = PUBLISHED[name]
    return facts_of(config, parameters)


def stages(name: str, ranks: int, dtype: str = "bfloat16", **layout: Any) -> list[RankMemory]:
    learner = LearnerConfig(backend="megatron", num_workers=ranks, megatron=MegatronConfig(**layout))
    return rank_memory(Config(model=ModelConfig(path="m", dtype=dtype), learner=learner), facts(name))


@pytest.mark.parametrize("name", PUBLISHED)
def test_one_rank_has_every_parameter_of_a_published_model(name: str) -> None:
    (alone,) = stages(name, 1)
    assert alone.parameters == PUBLISHED[name][1]


@pytest.mark.parametrize(("name", "ranks", "layout"), LAYOUTS)
def test_a_layout_that_people_run_fits_gpus_of_80_gib(name: str, ranks: int, layout: Mapping[str, Any]) -> None:
    assert all(one.total < GPU for one in stages(name, ranks, **layout))
    (alone,) = stages(name, 1)
    assert alone.total > GPU


def test_stages_have_the_parameters_between_them_and_each_end_has_a_matrix_of_the_vocabulary() -> None:
    config, parameters = PUBLISHED["235B-A22B"]
    first, last = stages("235B-A22B", 2, pipeline_parallel=2)
    assert first.parameters + last.parameters == parameters
    assert last.parameters - first.parameters == config["hidden_size"]  # the norm behind the last layer


@pytest.mark.parametrize("pipeline", [1, 2])
def test_a_tied_matrix_is_on_both_ends_of_a_pipeline_and_once_without_one(pipeline: int) -> None:
    config, parameters = PUBLISHED["0.6B"]
    found = sum(one.parameters for one in stages("0.6B", pipeline, pipeline_parallel=pipeline))
    assert found == parameters + (pipeline - 1) * config["vocab_size"] * config["hidden_size"]


def test_a_critic_is_counted_as_a_second_model() -> None:
    learner = LearnerConfig(backend="megatron", num_workers=1, algorithm=AlgorithmConfig(advantage="gae"))
    (both,) = rank_memory(Config(model=ModelConfig(path="m", dtype="bfloat16"), learner=learner), facts("8B"))
    (alone,) = stages("8B", 1)
    assert both == alone._replace(
        weights=2 * alone.weights, gradients=2 * alone.gradients, optimizer=2 * alone.optimizer
    )


@pytest.mark.parametrize(
    ("algorithm", "bytes_each"),
    [
        (AlgorithmConfig(kl_coef=0.1), 2),
        (AlgorithmConfig(loss="opd"), 2),
        (AlgorithmConfig(kl_coef=0.1, reference=ReferenceConfig(kind="average")), 2 + 4),
        (AlgorithmConfig(reference=ReferenceConfig(kind="average")), 0),
    ],
    ids=["divergence", "teacher", "average", "none"],
)
def test_a_reference_counts_by_its_weights_alone(algorithm: AlgorithmConfig, bytes_each: int) -> None:
    learner = LearnerConfig(backend="megatron", num_workers=1, algorithm=algorithm)
    (held,) = rank_memory(Config(model=ModelConfig(path="m", dtype="bfloat16"), learner=learner), facts("8B"))
    (alone,) = stages("8B", 1)
    assert held == alone._replace(weights=alone.weights + bytes_each * alone.parameters)


def with_adapters(ranks: int, advantage: str = "grpo", **layout: Any) -> list[RankMemory]:
    """Of rank 8 on two layers, one cut by its outputs and one by its inputs."""
    learner = LearnerConfig(
        backend="megatron",
        num_workers=ranks,
        megatron=MegatronConfig(**layout),
        algorithm=AlgorithmConfig(advantage=advantage),
        lora=LoraConfig(rank=8, targets=("q_proj", "down_proj")),
    )
    return rank_memory(Config(model=ModelConfig(path="m", dtype="bfloat16"), learner=learner), facts("8B"))


def test_of_a_model_with_adapters_these_alone_have_gradients_and_moments() -> None:
    (alone,), (adapted,) = stages("8B", 1), with_adapters(1)
    count = 36 * 8 * ((4096 + 32 * 128) + (12288 + 4096))
    assert adapted == alone._replace(weights=alone.weights + 4 * count, gradients=4 * count, optimizer=8 * count)
    (critic,) = with_adapters(1, "gae")
    assert critic.gradients == alone.gradients + 4 * count


def test_a_rank_has_its_part_of_the_end_of_an_adapter_at_which_the_layer_is_cut() -> None:
    count = 18 * 8 * ((4096 + 32 * 128 // 4) + (12288 // 4 + 4096))
    for one in with_adapters(NODE, tensor_parallel=4, pipeline_parallel=2):
        assert (one.gradients, one.optimizer) == (4 * count, 8 * count)
    (spread,) = with_adapters(NODE, tensor_parallel=4)
    assert (spread.gradients, spread.optimizer) == (4 * 2 * count, 8 * count)


def test_bytes_of_a_parameter_by_format_and_by_who_has_its_moments() -> None:
    (alone,) = stages("8B", 1)
    assert (alone.weights, alone.gradients, alone.optimizer) == tuple(bytes * alone.parameters for bytes in (2, 4, 16))
    (summed,) = stages("8B", 1, precision="bfloat16")
    assert summed.gradients == 2 * alone.parameters
    (wide,) = stages("8B", 1, "float32")
    assert (wide.weights, wide.gradients, wide.optimizer) == tuple(bytes * alone.parameters for bytes in (4, 4, 8))
    (shared,) = stages("8B", NODE)
    assert shared.optimizer == alone.optimizer // NODE
    (kept,) = stages("8B", NODE, distributed_optimizer=False)
    assert kept.optimizer == alone.optimizer


def test_moments_of_experts_are_shared_out_to_the_ranks_that_have_the_same_ones() -> None:
    (spread,) = stages("30B-A3B", NODE, expert_parallel=NODE)
    (whole,) = stages("30B-A3B", 1)
    experts = (whole.parameters - spread.parameters) * NODE // (NODE - 1)
    dense = whole.parameters - experts
    assert spread.optimizer == 16 * (dense // NODE + experts // NODE)
    (kept,) = stages("30B-A3B", NODE, expert_parallel=NODE, distributed_optimizer=False)
    assert kept.optimizer == 16 * (dense + experts // NODE)


def test_activations_become_less_by_recomputing_and_by_spreading_and_more_by_stages_ahead() -> None:
    (plain,), (again,) = stages("8B", NODE), stages("8B", NODE, **SHALLOW)
    (narrow,), (spread,) = stages("8B", NODE, tensor_parallel=4), stages("8B", NODE, **SPREAD)
    assert again.activations < spread.activations < narrow.activations < plain.activations
    first, last = stages("8B", NODE, pipeline_parallel=2)
    assert first.activations > last.activations
    assert plain.total == plain.weights + plain.gradients + plain.optimizer + plain.activations + DEVICE_BYTES
