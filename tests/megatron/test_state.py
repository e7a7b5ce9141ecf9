"""The state of a learner on two ranks: over layouts and backends, in bfloat16, beside a snapshot, and after a NaN."""

from pathlib import Path
from typing import Any

import pytest
from support.learner.rank_processes import run_ranks
from support.repository import TESTS

PROGRAM = TESTS / "support" / "megatron" / "state_rank.py"


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder: Path = tmp_path_factory.mktemp("state")
    return run_ranks(PROGRAM, folder, 2, timeout_s=500)


@pytest.mark.parametrize(
    "way",
    [
        "tensor_to_pipeline",
        "pipeline_to_data",
        "data_to_tensor",
        "expert_to_expert_tensor",
        "expert_tensor_to_expert",
    ],
)
def test_weights_and_moments_go_on_in_another_layout(way: str, ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank[way]["equal"], "what was loaded is not what was saved"
        assert rank[way]["steps_done"] == 3
        assert rank[way]["apart"] <= 1e-6


def test_a_state_goes_to_the_fsdp_backend_and_back(ranks: list[dict[str, Any]]) -> None:
    assert max(rank["fsdp"]["apart"] for rank in ranks) <= 1e-6


def test_several_updates_of_a_step_are_those_of_the_fsdp_backend(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["several_updates"]["metrics"] <= 1e-5
        assert rank["several_updates"]["apart"] <= 1.5e-5


def test_what_is_published_in_bfloat16_is_the_optimizers_float32_rounded(ranks: list[dict[str, Any]]) -> None:
    assert all(all(rank["bfloat16"]["rounded"]) for rank in ranks)


def test_a_snapshot_is_gathered_beside_a_step_as_it_was(ranks: list[dict[str, Any]]) -> None:
    assert all(all(rank["beside"]["same"]) for rank in ranks)


def test_a_nan_on_one_rank_stops_all_before_anything_changes(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        for found in rank["broken"]["layouts"]:
            assert "learner step 2" in found["said"][0]
            assert "loss/policy = nan" in found["said"][0]
            assert found["same"]
            assert found["steps_done"] == 1


def test_a_weight_that_is_not_finite_is_published_by_no_rank(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        tensor, pipeline, _ = rank["broken"]["layouts"]
        assert "model.layers.0.mlp.down_proj.weight: 1 of 1536 elements are not finite" in tensor["said"][1]
        assert "model.layers.2.mlp.down_proj.weight: 1 of 1536 elements are not finite" in pipeline["said"][1]
