"""Packs spread over ranks, alone, beside FSDP and beside spread layers, train as one rank does."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.learner.rank_processes import run_ranks
from transformers import Qwen3Config

from streamrl.errors import ConfigError
from streamrl.learner.batch.attention_layout import lay_out
from streamrl.learner.batch.packing import empty_pack
from streamrl.learner.parallel.sequence_parallel import SequenceRanks, require_heads

PROGRAM = Path(__file__).with_name("sequence_rank.py")
TRAINED = [("1x2x1", "qwen2"), ("1x2x1", "qwen3"), ("1x2x1", "llama"), ("2x2x1", "qwen2"), ("1x2x2", "llama")]
TRAINED += [("1x4x1", "qwen3")]
"""A mesh (data x sequence x tensor) and a model."""
METRICS = ("loss/policy", "loss/entropy", "grad/norm", "ratio/mean", "mismatch/kl")


def ranks_in(mesh: str) -> int:
    return math.prod(map(int, mesh.split("x")))


MESHES = list(dict.fromkeys(mesh for mesh, _ in TRAINED))


class Runs:
    """What the ranks found, of each number of ranks; they run when the first test asks for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ran: dict[int, list[dict[str, Any]]] = {}

    @property
    def one(self) -> dict[str, Any]:
        return self.of("1x1x1")[0]

    def of(self, mesh: str) -> list[dict[str, Any]]:
        """By rank."""
        world = ranks_in(mesh)
        if world not in self._ran:
            self._ran[world] = run_ranks(PROGRAM, self.folder, world, self.folder)
        return [rank[mesh] for rank in self._ran[world]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("sequence"))


def assert_agree(got: list[dict[str, float]], expected: list[dict[str, float]]) -> None:
    assert len(got) == len(expected) > 2
    for a, b in zip(got, expected, strict=True):
        for key in METRICS:
            assert a[key] == pytest.approx(b[key], rel=1e-5, abs=1e-5), key


@pytest.mark.long
@pytest.mark.parametrize(("mesh", "family"), TRAINED)
def test_spread_packs_give_the_losses_gradient_norms_and_weights_of_one_rank(
    mesh: str, family: str, runs: Runs
) -> None:
    one = runs.one
    for rank in runs.of(mesh):
        assert_agree(rank[family]["metrics"], one[family]["metrics"])
    got, expected = (load_file(runs.folder / f"{family}_{name}.safetensors") for name in (mesh, "1x1x1"))
    assert list(got) == list(expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(
            got[name], tensor, rtol=1e-5, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.long
@pytest.mark.parametrize("mesh", MESHES)
def test_every_rank_knows_the_log_probs_and_values_of_all_targets(mesh: str, runs: Runs) -> None:
    for rank in runs.of(mesh):
        for what, close in (("logprobs", 1e-5), ("values", 1e-5), ("bfloat16", 0.05)):
            for got, expected in zip(rank[what], runs.one[what], strict=True):
                np.testing.assert_allclose(got, expected, rtol=close, atol=close, err_msg=what)
            assert rank[what] == runs.of(mesh)[0][what], "not the same on all ranks"
        assert sum(map(len, rank["logprobs"])) > 100


@pytest.mark.long
@pytest.mark.parametrize("mesh", MESHES)
def test_a_loss_by_rows_and_packs_of_fewer_tokens_than_ranks_train_as_on_one_rank(mesh: str, runs: Runs) -> None:
    for rank in runs.of(mesh):
        assert_agree(rank["rows"], runs.one["rows"])


@pytest.mark.long
@pytest.mark.parametrize("mesh", ["1x2x1", "2x2x1", "1x4x1"])
def test_adapters_train_as_on_one_rank(mesh: str, runs: Runs) -> None:
    for rank in runs.of(mesh):
        assert_agree(rank["adapters"], runs.one["adapters"])


@pytest.mark.long
@pytest.mark.parametrize(("mesh", "family"), TRAINED)
def test_all_ranks_give_out_the_same_weights_also_beside_the_steps(mesh: str, family: str, runs: Runs) -> None:
    assert len({rank[family][name] for rank in runs.of(mesh) for name in ("digest", "gathered")}) == 1


@pytest.mark.long
@pytest.mark.parametrize("mesh", ["1x2x1", "1x4x1"])
def test_layers_that_are_computed_again_are_the_same(mesh: str, runs: Runs) -> None:
    for rank in runs.of(mesh):
        assert rank["checkpointed"]["digest"] == rank["qwen3"]["digest"]


@pytest.mark.parametrize("tokens", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_stretches_cover_a_pack_and_each_target_is_predicted_in_one(tokens: int, size: int) -> None:
    place = torch.arange(tokens)
    layout = lay_out(np.array([tokens]))
    values = torch.zeros(tokens)
    pack = type(empty_pack())(place, place, layout, place, place, values, values, values, values, place)
    stretches = [SequenceRanks(None, rank, size).stretch(pack) for rank in range(size)]
    lengths = [len(each.pack.ids[each.tokens]) for each in stretches]
    assert sum(lengths) == max(tokens, size)
    assert 1 <= min(lengths) <= max(lengths) <= min(lengths) + 1
    assert torch.cat([each.mine for each in stretches]).tolist() == list(range(tokens))
    for each in stretches:
        assert int(each.pack.layout.cu_q[-1]) == len(each.pack.ids)
        assert each.pack.layout.kv_index.tolist() == list(range(len(each.pack.ids)))


def test_heads_that_are_not_shared_out_evenly_are_refused_with_the_numbers() -> None:
    config = Qwen3Config(num_attention_heads=4, num_key_value_heads=1)
    require_heads(config, 4, 1)
    require_heads(config, 2, 2)
    with pytest.raises(ConfigError, match="sequence_parallel = 3 does not divide the model's num_attention_heads = 4"):
        require_heads(config, 3, 1)
    with pytest.raises(ConfigError, match=r"sequence_parallel = 4 with learner\.tensor_parallel = 2 does not divide"):
        require_heads(config, 4, 2)
