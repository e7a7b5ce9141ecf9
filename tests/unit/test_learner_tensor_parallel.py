"""Layers spread over two ranks, alone and beside FSDP, train as one rank does."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from rank_processes import run_ranks
from safetensors.torch import load_file
from transformers import Qwen3Config

from streamrl.errors import ConfigError
from streamrl.learner.tensor_parallel import require_divisible, spread

PROGRAM = Path(__file__).with_name("tensor_rank.py")
FAMILIES = ("qwen2", "qwen3", "llama")


class Runs(NamedTuple):
    """What the ranks found: of two, of one, of four, and of two that load what one saved."""

    two: list[dict[str, Any]]
    one: dict[str, Any]
    four: list[dict[str, Any]]
    back: list[dict[str, Any]]
    folder: Path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("tensor")
    four, two = (run_ranks(PROGRAM, folder, world, folder) for world in (4, 2))
    (one,) = run_ranks(PROGRAM, folder, 1, folder)
    for left in folder.glob("store_*"):
        left.unlink()
    return Runs(two, one, four, run_ranks(PROGRAM, folder, 2, folder), folder)


def assert_agree(got: list[dict[str, float]], expected: list[dict[str, float]]) -> None:
    for a, b in zip(got, expected, strict=True):
        for key in ("loss/policy", "loss/entropy", "grad/norm", "ratio/mean", "mismatch/kl"):
            assert a[key] == pytest.approx(b[key], rel=1e-5, abs=1e-5), key


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("world", [2, 4])
def test_spread_layers_give_the_losses_and_gradient_norms_of_one_rank(world: int, family: str, runs: Runs) -> None:
    for rank in {2: runs.two, 4: runs.four}[world]:
        assert len(rank[family]["metrics"]) == 6
        assert_agree(rank[family]["metrics"], runs.one[family]["metrics"])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("world", [2, 4])
def test_spread_layers_leave_the_weights_of_one_rank_whole_and_by_name(world: int, family: str, runs: Runs) -> None:
    got, expected = (load_file(runs.folder / f"{family}_{count}.safetensors") for count in (world, 1))
    assert list(got) == list(expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(
            got[name], tensor, rtol=1e-5, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_all_ranks_give_out_the_same_weights_also_beside_the_steps(runs: Runs) -> None:
    for ranks in (runs.two, runs.four):
        for family in FAMILIES:
            assert len({rank[family]["digest"] for rank in ranks}) == 1
            assert {rank[family]["gathered"] for rank in ranks} == {ranks[0][family]["digest"]}


def test_layers_that_are_computed_again_are_spread_all_the_same(runs: Runs) -> None:
    for ranks in (runs.two, runs.four):
        for rank in ranks:
            assert rank["checkpointed"]["digest"] == rank["qwen3"]["digest"]


def test_a_checkpoint_of_two_ranks_loads_on_one_and_back_exactly(runs: Runs) -> None:
    saved = runs.two[0]["handed"]
    assert runs.one["handed"]["loaded"] == saved["before"]
    assert_agree(runs.one["handed"]["after"], saved["after"])
    for rank in runs.back:
        assert rank["handed"]["loaded"] == saved["before"]
        for a, b in zip(rank["handed"]["after"], saved["after"], strict=True):
            assert (a["loss/policy"], a["grad/norm"]) == (b["loss/policy"], b["grad/norm"])


def test_invariant_12_a_nan_in_the_part_of_one_rank_stops_all(runs: Runs) -> None:
    for rank in (*runs.two, *runs.four):
        assert "loss/policy = nan" in rank["broken"]["raised"]
        assert rank["broken"]["steps_done"] == 0


@pytest.mark.parametrize(
    ("sizes", "tensor", "data", "told"),
    [
        ({}, 3, 1, "learner.tensor_parallel = 3 does not divide the model's num_attention_heads = 4"),
        ({"num_key_value_heads": 1}, 2, 1, "num_key_value_heads = 1"),
        ({"intermediate_size": 35}, 2, 1, "intermediate_size = 35"),
        ({}, 2, 3, "the 8 rows of key that a rank has .* not a multiple of the 3 ranks"),
    ],
)
def test_a_model_that_cannot_be_spread_evenly_is_refused_with_the_number(
    sizes: dict[str, int], tensor: int, data: int, told: str
) -> None:
    usual = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48}
    with pytest.raises(ConfigError, match=told):
        require_divisible(Qwen3Config(hidden_size=32, **{**usual, **sizes}), tensor, data)


def test_a_layer_of_another_kind_is_refused_by_what_it_lacks() -> None:
    with pytest.raises(ConfigError, match=r"cannot spread Sequential: self_attn\.q_proj, .* is no linear layer"):
        spread(torch.nn.Sequential(), None)
