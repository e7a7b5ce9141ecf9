"""The learner's process on megatron-core: what it trains, publishes and saves is what it does on FSDP2."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.learner.rank_processes import run_ranks
from support.megatron.core_rank import CHAIN, prepare
from support.repository import TESTS

PROGRAM = TESTS / "support" / "megatron" / "core_rank.py"
LAYOUTS = ("tensor", "pipeline", "data", "context")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder: Path = tmp_path_factory.mktemp("core")
    runs = folder / "runs"
    runs.mkdir()
    prepare(runs)
    return run_ranks(PROGRAM, folder, 2, runs, timeout_s=500)


def far_apart(ours: dict[str, float], theirs: dict[str, float]) -> float:
    return max(abs(ours[name] - theirs[name]) for name in theirs)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_step_has_the_metrics_of_fsdp(layout: str, ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        pairs = zip(rank[layout]["metrics"], rank["fsdp"]["metrics"], strict=True)
        assert max(far_apart(ours, theirs) for ours, theirs in pairs) <= 1e-4


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_version_is_published_beside_a_step_as_the_weights_were_before_it(
    layout: str, ranks: list[dict[str, Any]]
) -> None:
    first, second = (rank[layout] for rank in ranks)
    assert first["published"] == first["digests"] == second["digests"]
    assert first["digests"][0] == ranks[0]["fsdp"]["digests"][0]
    assert len(set(first["digests"])) == 3


@pytest.mark.parametrize("layout", ["pipeline_held", "tensor_held"])
def test_rows_pay_once_for_their_divergence_from_the_reference(layout: str, ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        pairs = list(zip(rank[layout]["metrics"], rank["fsdp_held"]["metrics"], strict=True))
        assert abs(pairs[-1][1]["reward/kl"]) > 1e-3
        assert max(far_apart(ours, theirs) for ours, theirs in pairs) <= 1e-4


def test_a_run_with_a_critic_has_the_metrics_of_fsdp_and_goes_on_in_either_backend(
    ranks: list[dict[str, Any]],
) -> None:
    for rank in ranks:
        ours, theirs = rank["pipeline_critic"], rank["fsdp_critic"]
        assert theirs["metrics"][-1]["critic/loss"] > 0.0
        pairs = zip(ours["metrics"], theirs["metrics"], strict=True)
        assert max(far_apart(*pair) for pair in pairs) <= 1e-4
        assert ours["checkpoint"] == theirs["checkpoint"] == 3
        assert far_apart(ours["resumed"], theirs["resumed"]) <= 1e-4


def test_a_run_goes_from_tensor_to_pipeline_parallel_and_to_one_rank_with_the_same_optimizers(
    ranks: list[dict[str, Any]],
) -> None:
    """Weights and moments of policy and critic, tensor by tensor to the bit, from one checkpoint to the next."""
    first, second = (rank["chain"] for rank in ranks)
    assert [first[layout]["from"] for layout in CHAIN] == [None, 2, 4]
    kinds = {"model", "exp_avg", "exp_avg_sq", "critic/model", "critic/exp_avg", "critic/exp_avg_sq"}
    for before, after in pairwise(CHAIN):
        saved = first[before]["saved"]
        assert {name.rpartition("/")[0] for name in saved} == kinds
        assert first[after]["loaded"] == saved
        assert first[after]["saved"].keys() == saved.keys()
        assert all(first[after]["saved"][name] != digest for name, digest in saved.items() if "exp_avg/" in name)
    assert second["pipeline"]["loaded"] == first["pipeline"]["loaded"]
    went_on = [metrics for layout in CHAIN for metrics in first[layout]["metrics"]]
    pairs = zip(went_on, first["never_left"]["metrics"], strict=True)
    assert max(far_apart(*pair) for pair in pairs) <= 1e-4


@pytest.mark.parametrize("run", ["fsdp", *LAYOUTS])
def test_a_checkpoint_goes_on_in_another_layout_or_backend(run: str, ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank[run]["checkpoint"] == 3
        assert far_apart(rank[run]["resumed"], ranks[0]["fsdp"]["resumed"]) <= 1e-4
