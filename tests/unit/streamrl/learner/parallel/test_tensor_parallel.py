"""Layers spread over two ranks, alone and beside FSDP, train as one rank does."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.learner.rank_processes import run_ranks
from support.repository import TESTS
from transformers import Qwen3Config

from streamrl.errors import ConfigError
from streamrl.learner.parallel.tensor_parallel import require_divisible, spread

PROGRAM = TESTS / "support/learner/tensor_rank.py"
FAMILIES = ("qwen2", "qwen3", "llama", "llama with biases")


WORLDS = [2, pytest.param(4, marks=pytest.mark.long)]
"""Four ranks on two processors take a minute."""


class Runs:
    """What the ranks found, of each number of ranks; they run when the first test asks for it. One rank goes on from
    what two have saved, and two from what one has."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ran: dict[int, list[dict[str, Any]]] = {}

    @property
    def one(self) -> dict[str, Any]:
        self.of(2)
        return self.of(1)[0]

    def of(self, world: int) -> list[dict[str, Any]]:
        """By rank."""
        if world not in self._ran:
            folder = self.folder_of(world)
            folder.mkdir(exist_ok=True)
            self._ran[world] = run_ranks(PROGRAM, folder, world, folder)
        return self._ran[world]

    def folder_of(self, world: int) -> Path:
        """One rank and two have theirs in common."""
        return self.folder if world <= 2 else self.folder / f"of_{world}"

    def back(self) -> list[dict[str, Any]]:
        """Two ranks once more, behind the one."""
        self.of(2), self.of(1)
        for left in self.folder.glob("store_*"):
            left.unlink()
        return run_ranks(PROGRAM, self.folder, 2, self.folder)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("tensor"))


def assert_agree(got: list[dict[str, float]], expected: list[dict[str, float]]) -> None:
    for a, b in zip(got, expected, strict=True):
        for key in ("loss/policy", "loss/entropy", "grad/norm", "ratio/mean", "mismatch/kl"):
            assert a[key] == pytest.approx(b[key], rel=1e-5, abs=1e-5), key


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("world", WORLDS)
def test_spread_layers_give_the_losses_and_gradient_norms_of_one_rank(world: int, family: str, runs: Runs) -> None:
    for rank in runs.of(world):
        assert len(rank[family]["metrics"]) == 6
        assert_agree(rank[family]["metrics"], runs.one[family]["metrics"])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("world", WORLDS)
def test_spread_layers_leave_the_weights_of_one_rank_whole_and_by_name(world: int, family: str, runs: Runs) -> None:
    assert runs.one
    assert runs.of(world)
    got, expected = (load_file(runs.folder_of(count) / f"{family}_{count}.safetensors") for count in (world, 1))
    assert list(got) == list(expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(
            got[name], tensor, rtol=1e-5, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("world", WORLDS)
def test_all_ranks_give_out_the_same_weights_also_beside_the_steps(world: int, runs: Runs) -> None:
    ranks = runs.of(world)
    for family in FAMILIES:
        assert len({rank[family]["digest"] for rank in ranks}) == 1
        assert {rank[family]["gathered"] for rank in ranks} == {ranks[0][family]["digest"]}


@pytest.mark.parametrize("world", WORLDS)
def test_layers_that_are_computed_again_are_spread_all_the_same(world: int, runs: Runs) -> None:
    for rank in runs.of(world):
        assert rank["checkpointed"]["digest"] == rank["qwen3"]["digest"]


def test_a_checkpoint_of_two_ranks_loads_on_one_and_back_exactly(runs: Runs) -> None:
    saved = runs.of(2)[0]["handed"]
    assert runs.one["handed"]["loaded"] == saved["before"]
    assert_agree(runs.one["handed"]["after"], saved["after"])
    for rank in runs.back():
        assert rank["handed"]["loaded"] == saved["before"]
        for a, b in zip(rank["handed"]["after"], saved["after"], strict=True):
            assert (a["loss/policy"], a["grad/norm"]) == (b["loss/policy"], b["grad/norm"])


@pytest.mark.parametrize("world", WORLDS)
def test_invariant_12_a_nan_in_the_part_of_one_rank_stops_all(world: int, runs: Runs) -> None:
    for rank in runs.of(world):
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
