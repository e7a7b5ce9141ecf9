"""However a layer is computed, loss, gradient and weights are the same, on one rank and on two."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.learner.rank_processes import run_ranks

from streamrl.config.schema.learner import ExecutionConfig
from streamrl.errors import ConfigError
from streamrl.learner.model.execution import offload_policy, prepare

PROGRAM = Path(__file__).with_name("execution_rank.py")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    """By number of ranks, what each rank found."""
    folder = tmp_path_factory.mktemp("execution")
    return {world: run_ranks(PROGRAM, folder, world, Path("all")) for world in (1, 2)}


@pytest.mark.long
@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("way", ["activation_checkpointing", "offload", "both"])
@pytest.mark.parametrize("trained", ["", "adapters, "])
def test_a_layer_computed_in_another_way_leaves_equal_losses_gradients_and_weights(
    trained: str, way: str, world: int, runs: dict[int, list[dict[str, Any]]]
) -> None:
    for rank in runs[world]:
        plain, other = rank[f"{trained}plain"], rank[trained + way]
        assert len(other["metrics"]) == 5
        for a, b in zip(other["metrics"], plain["metrics"], strict=True):
            assert (a["loss/policy"], a["grad/norm"]) == (b["loss/policy"], b["grad/norm"])
        assert (other["digest"], other["names"]) == (plain["digest"], plain["names"])


@pytest.mark.long
@pytest.mark.parametrize("trained", ["", "adapters, "])
def test_two_ranks_leave_the_weights_of_one_under_all_of_it(
    trained: str, runs: dict[int, list[dict[str, Any]]]
) -> None:
    one, (first, second) = runs[1][0][f"{trained}both"], (rank[f"{trained}both"] for rank in runs[2])
    for a, b in zip(first["metrics"], one["metrics"], strict=True):
        assert a["grad/norm"] == pytest.approx(b["grad/norm"], rel=1e-5)
    assert first["digest"] == second["digest"]


@pytest.mark.long
def test_a_checkpointed_layer_is_computed_twice_and_others_once(runs: dict[int, list[dict[str, Any]]]) -> None:
    found = runs[1][0]
    assert found["activation_checkpointing"]["calls"] == found["both"]["calls"] == 2 * found["plain"]["calls"]
    assert found["offload"]["calls"] == found["plain"]["calls"] > 0


@pytest.mark.long
@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("trained", ["", "adapters, "])
def test_gradients_that_are_added_over_the_ranks_after_each_pack_are_the_same_to_rounding(
    trained: str, world: int, runs: dict[int, list[dict[str, Any]]]
) -> None:
    for rank in runs[world]:
        plain, other = rank[f"{trained}plain"], rank[f"{trained}every pack"]
        for a, b in zip(other["metrics"], plain["metrics"], strict=True):
            for key in ("loss/policy", "grad/norm"):
                assert a[key] == pytest.approx(b[key], rel=1e-5, abs=1e-6), key
        # All packs of a step but the first find what those before them left, and not those of a later share alone.
        assert other["packs"] == plain["packs"]
        assert other["reduced"] == other["packs"] - len(other["metrics"]) > plain["reduced"]


@pytest.mark.long  # a compiler runs for each piece of a layer: a minute and a half of one processor
@pytest.mark.timeout(900)
@pytest.mark.parametrize("world", [1, 2])
def test_compiled_layers_give_the_same_to_rounding_and_are_compiled_once_for_packs_of_any_length(
    world: int, tmp_path: Path
) -> None:
    for rank in run_ranks(PROGRAM, tmp_path, world, Path("compiled"), timeout_s=800.0):
        for trained in ("", "adapters, "):
            plain, compiled = rank[f"{trained}plain"], rank[f"{trained}compiled"]
            for a, b in zip(compiled["metrics"], plain["metrics"], strict=True):
                for key in ("loss/policy", "grad/norm", "mismatch/kl"):
                    assert a[key] == pytest.approx(b[key], rel=1e-5, abs=1e-5), key
            assert compiled["names"] == plain["names"]
            early, late = compiled["graphs"]
            # A pack of one token, of a rank that has no more rows, is compiled apart, whenever the first one comes.
            assert plain["graphs"][1] < early <= late <= 2 * early


def test_only_what_goes_to_a_gpu_lies_in_pinned_memory() -> None:
    offload = ExecutionConfig(offload=True)
    assert not offload_policy(offload, CPU).pin_memory
    assert offload_policy(offload, torch.device("cuda")).pin_memory
    assert not hasattr(offload_policy(ExecutionConfig(), CPU), "pin_memory")


def test_without_a_compiler_a_cpu_says_which_key_needs_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(ConfigError, match=r"learner\.execution\.compile = true needs a C\+\+ compiler"):
        prepare(torch.nn.Linear(1, 1), ExecutionConfig(compile=True), CPU)
