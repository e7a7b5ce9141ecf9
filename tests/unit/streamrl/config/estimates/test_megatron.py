"""Layouts under Megatron: who has what, and which cannot be, with the numbers."""

from itertools import product
from typing import Any

import msgspec
import pytest

from streamrl.config import Config
from streamrl.config.estimates.capacity import check_capacity
from streamrl.config.estimates.megatron import MegatronLayout, model_fits, ranks_fit
from streamrl.config.estimates.model_facts import ModelFacts, facts_of
from streamrl.config.schema.learner import LearnerConfig, MegatronConfig

DENSE = {
    "model_type": "qwen3",
    "hidden_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 100,
}
EXPERTS = {**DENSE, "model_type": "qwen3_moe", "num_experts": 8, "moe_intermediate_size": 12}


def facts(base: dict[str, Any], **change: Any) -> ModelFacts:
    return facts_of({**base, **change}, 1000)


def config_with(ranks: int, **layout: Any) -> Config:
    return Config(learner=LearnerConfig(backend="megatron", num_workers=ranks, megatron=MegatronConfig(**layout)))


def said(ranks: int, model: ModelFacts, **layout: Any) -> list[str]:
    return [str(problem) for problem in model_fits(config_with(ranks, **layout), model)]


SIZES = [sizes for sizes in product((1, 2, 3), (1, 2), (1, 2), (1, 2)) if sizes[0] * sizes[1] * sizes[2] <= 6]


@pytest.mark.parametrize(("tensor", "pipeline", "context", "data"), SIZES)
def test_ranks_of_one_model_have_the_same_rows_and_each_stage_comes_once(
    tensor: int, pipeline: int, context: int, data: int
) -> None:
    layout = MegatronLayout(tensor * pipeline * context * data, tensor, pipeline, context=context)
    assert layout.data_size == data
    seen = [(layout.data_rank(rank), layout.stage(rank)) for rank in range(layout.world_size)]
    assert all(seen.count(place) == tensor * context for place in product(range(data), range(pipeline)))
    assert config_with(layout.world_size, tensor_parallel=tensor, pipeline_parallel=pipeline).learner.data_ranks == (
        data * context
    )


@pytest.mark.parametrize(("tensor", "context"), [(1, 2), (2, 2), (3, 2), (2, 3)])
def test_ranks_of_one_pack_have_a_stretch_each(tensor: int, context: int) -> None:
    layout = MegatronLayout(tensor * context * 4, tensor, 2, context=context)
    seen = [(layout.data_rank(n), layout.stage(n), layout.context_rank(n)) for n in range(layout.world_size)]
    assert all(seen.count(place) == tensor for place in product(range(2), range(2), range(context)))


@pytest.mark.parametrize(
    ("tensor", "context", "told"), [(1, 4, ""), (2, 4, ""), (1, 3, "it"), (4, 4, "it times tensor")]
)
def test_heads_that_are_not_shared_out_to_the_stretches_are_told(tensor: int, context: int, told: str) -> None:
    problems = said(tensor * context, facts(DENSE), tensor_parallel=tensor, context_parallel=context)
    assert len(problems) == bool(told)
    assert all(f"8 attention heads are no multiple of {told}" in one for one in problems)


@pytest.mark.parametrize(("pipeline", "virtual"), [(1, 1), (2, 1), (3, 2), (2, 3), (4, 3)])
def test_each_layer_is_in_one_chunk_in_the_order_in_which_a_pack_goes(pipeline: int, virtual: int) -> None:
    layout, num_layers = MegatronLayout(pipeline, pipeline=pipeline, virtual=virtual), 12
    in_order = [
        layer
        for chunk, stage in product(range(virtual), range(pipeline))
        for layer in layout.layers(num_layers, stage, chunk)
    ]
    assert in_order == list(range(num_layers))
    for layer in range(num_layers):
        stage, chunk = layout.chunk_of(num_layers, layer)
        assert layer in layout.layers(num_layers, stage, chunk)


@pytest.mark.parametrize(("vocabulary", "tensor"), [(67, 1), (67, 2), (8, 4), (9, 4), (5, 4), (3, 2)])
def test_each_row_of_the_vocabulary_is_on_one_rank(vocabulary: int, tensor: int) -> None:
    layout = MegatronLayout(tensor, tensor)
    padded = layout.padded_vocabulary(vocabulary)
    assert padded % tensor == 0
    assert 0 <= padded - vocabulary < tensor
    assert sum(layout.own_vocabulary(vocabulary, rank) for rank in range(tensor)) == vocabulary


def test_a_layout_that_fits_has_no_problem() -> None:
    layout = {"tensor_parallel": 4, "pipeline_parallel": 3, "virtual_pipeline": 2}
    assert said(24, facts(DENSE), **layout) == []
    layout = {"tensor_parallel": 2, "sequence_parallel": True, "expert_parallel": 8, "expert_tensor_parallel": 2}
    assert said(16, facts(EXPERTS), **layout) == []


@pytest.mark.parametrize(
    ("layout", "model", "expected"),
    [
        ({"tensor_parallel": 3}, facts(DENSE), "the model's 8 attention heads are no multiple of it"),
        ({"tensor_parallel": 8}, facts(DENSE), "the model's 4 key-value heads are no multiple of it"),
        ({"tensor_parallel": 4}, facts(DENSE, intermediate_size=90), "the model's 90 elements of the MLP's inner size"),
        (
            {"pipeline_parallel": 2, "virtual_pipeline": 2},
            facts(DENSE),
            "the model's 6 layers are not shared out evenly to 4 model chunks (pipeline_parallel x virtual_pipeline",
        ),
        (
            {"tensor_parallel": 4},
            facts(DENSE, vocab_size=5),
            "a vocabulary of 5 is padded to 8 rows, 2 a rank, and the last rank has padding alone",
        ),
        ({"expert_parallel": 3}, facts(EXPERTS), "the 8 experts of a layer are no multiple of it"),
        ({"expert_tensor_parallel": 5}, facts(EXPERTS), "the 12 elements of an expert's inner size are no multiple"),
        ({"expert_parallel": 2}, facts(DENSE), "the model (qwen3) has no experts; set 1"),
        ({"tensor_parallel": 2}, facts(EXPERTS), "under tensor_parallel = 2 needs the tokens spread, too"),
        ({}, facts(DENSE, model_type="gemma3_text"), 'no mapping of weights for models of type "gemma3_text"'),
    ],
)
def test_what_a_model_cannot_be_cut_into_is_named_with_the_numbers(
    layout: dict[str, Any], model: ModelFacts, expected: str
) -> None:
    problems = said(8, model, **layout)
    assert any(expected in problem for problem in problems), problems


@pytest.mark.parametrize(
    ("ranks", "layout", "expected"),
    [
        (
            6,
            {"tensor_parallel": 2, "pipeline_parallel": 2},
            "6 ranks are no multiple of the 4 that one model takes (tensor_parallel x pipeline_parallel x "
            "context_parallel = 2 x 2 x 1)",
        ),
        (
            6,
            {"expert_parallel": 4},
            "6 ranks are no multiple of the 4 that one set of experts takes (expert_parallel x expert_tensor_parallel "
            "x pipeline_parallel = 4 x 1 x 1)",
        ),
    ],
)
def test_ranks_that_are_no_whole_number_of_models_are_named(ranks: int, layout: dict[str, Any], expected: str) -> None:
    (problem,) = ranks_fit(MegatronConfig(**layout), ranks)
    assert expected in str(problem)
    assert problem.key == "learner.num_workers"


def test_a_check_looks_at_the_model_under_megatron_alone() -> None:
    config = config_with(3, tensor_parallel=3)
    problems = [problem.key for problem in check_capacity(config, facts(DENSE), 1)]
    assert "learner.megatron.tensor_parallel" in problems
    other = msgspec.structs.replace(config, learner=msgspec.structs.replace(config.learner, backend="fsdp"))
    assert "learner.megatron.tensor_parallel" not in [p.key for p in check_capacity(other, facts(DENSE), 1)]
