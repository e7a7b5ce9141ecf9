"""Two gloo ranks agree with one, stop together, and hand their state on to one."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from support.learner.rank_processes import run_ranks
from support.repository import TESTS

from streamrl.learner.checkpoint.checkpoint import find_newest
from streamrl.learner.checkpoint.digest import tensor_digest

PROGRAM = TESTS / "support" / "learner" / "learner_rank.py"
BFLOAT16 = Path(__file__).with_name("bfloat16_rank.py")
RESHARDS = Path(__file__).with_name("reshard_rank.py")
LATE = Path(__file__).with_name("late_rank.py")
COMPARED = ("loss/policy", "loss/entropy", "grad/norm", "ratio/mean", "mismatch/kl", "mismatch/logprob_abs_max")


class Runs(NamedTuple):
    two: list[dict[str, Any]]
    one: dict[str, Any]
    checkpoints: Path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Two ranks first: their checkpoint is what the one rank resumes from."""
    folder = tmp_path_factory.mktemp("ranks")
    two = run_ranks(PROGRAM, folder, 2, folder / "checkpoints")
    return Runs(two, run_ranks(PROGRAM, folder, 1, folder / "checkpoints")[0], folder / "checkpoints")


def assert_agree(got: list[dict[str, float]], expected: list[dict[str, float]]) -> None:
    for a, b in zip(got, expected, strict=True):
        for key in COMPARED:
            assert a[key] == pytest.approx(b[key], rel=1e-5, abs=1e-5), key


def test_two_ranks_agree_with_one_over_twenty_steps(runs: Runs) -> None:
    assert len(runs.one["metrics"]) == 20
    assert_agree(runs.two[0]["metrics"], runs.one["metrics"])


def test_ranks_report_the_same_metrics_and_give_out_the_same_weights(runs: Runs) -> None:
    first, second = runs.two
    assert first["digest"] == second["digest"]
    for a, b in zip(first["metrics"], second["metrics"], strict=True):
        assert all(a[key] == b[key] for key in (*COMPARED, "learner/lr"))


def test_a_checkpoint_of_two_ranks_resumes_bit_equal_on_two_and_closely_on_one(runs: Runs) -> None:
    for rank in runs.two:
        assert rank["resumed_digest"] == rank["digest"]
        for key in COMPARED:
            assert [m[key] for m in rank["resumed_metrics"]] == [m[key] for m in rank["metrics"][16:]]
    assert_agree(runs.one["resumed_metrics"], runs.two[0]["metrics"][16:])


@pytest.mark.long
def test_weights_and_moments_go_from_two_ranks_to_one_and_back_without_a_changed_bit(
    runs: Runs, tmp_path: Path
) -> None:
    on_one, on_two = tmp_path / "one", tmp_path / "two"
    (one,) = run_ranks(RESHARDS, tmp_path, 1, runs.checkpoints, on_one)
    first, second = run_ranks(RESHARDS, tmp_path, 2, on_one, on_two)
    written = find_newest(runs.checkpoints).newest
    assert written is not None
    assert one["steps_done"] == first["steps_done"] == 16
    assert {name.partition("/")[0] for name in one["held"]} == {"model", "exp_avg", "exp_avg_sq"}
    for name, digest in one["held"].items():
        assert tensor_digest(written.tensor(name)) == digest, name
    assert first["held"] == second["held"] == one["held"]


def test_invariant_12_a_nan_on_one_rank_stops_all_and_changes_no_weight(runs: Runs) -> None:
    for rank in runs.two:
        step, digest = rank["broken"]["raised"]
        assert "loss/policy = nan" in step
        assert "model.norm.weight" in digest
        assert rank["broken"]["same"]
        assert rank["broken"]["steps_done"] == 20


def test_a_snapshot_is_gathered_whole_beside_the_steps_that_follow_it(runs: Runs) -> None:
    for rank in (*runs.two, runs.one):
        digests = [before for _, before in rank["beside"]]
        assert [gathered for gathered, _ in rank["beside"]] == digests
        assert len(set(digests)) == len(digests) == 6


def test_bytes_of_rank_zero_reach_every_rank(runs: Runs) -> None:
    assert {rank["heard"] for rank in (*runs.two, runs.one)} == {"rank 0 says \N{GREEK SMALL LETTER PI}"}


def test_on_two_shares_one_rank_and_two_make_equal_weights(runs: Runs) -> None:
    first, second = runs.two
    assert len(runs.one["shared_metrics"]) == 20
    assert [m["grad/norm"] for m in runs.one["shared_metrics"]] == [m["grad/norm"] for m in first["shared_metrics"]]
    assert runs.one["shared_digest"] == first["shared_digest"] == second["shared_digest"]


def test_what_is_of_rows_and_what_holds_the_policy_to_where_it_began_is_equal_on_one_rank_and_two(runs: Runs) -> None:
    first, second = runs.two
    assert runs.one["held_digest"] == first["held_digest"] == second["held_digest"]
    for one, two in zip(runs.one["held_metrics"], first["held_metrics"], strict=True):
        assert one["grad/norm"] == two["grad/norm"]
        for key in ("loss/kl", "correction/effective_share", "correction/rejected"):
            assert one[key] == pytest.approx(two[key], rel=1e-6)
    distances = [metrics["loss/kl"] for metrics in runs.one["held_metrics"]]
    assert distances[0] == 0.0
    assert distances[1:] == sorted(distances[1:])
    assert 0.0 < runs.one["held_metrics"][0]["correction/rejected"] < 1.0


def test_several_updates_a_step_make_equal_weights_on_one_rank_and_two(runs: Runs) -> None:
    first, second = runs.two
    assert runs.one["several_digest"] == first["several_digest"] == second["several_digest"]
    for one, two in zip(runs.one["several_metrics"], first["several_metrics"], strict=True):
        assert one["grad/norm"] == two["grad/norm"]
        assert one["ratio/mean"] == pytest.approx(two["ratio/mean"], rel=1e-6)


def test_on_two_shares_a_warm_up_leaves_equal_weights_on_one_rank_and_two(runs: Runs) -> None:
    first, second = runs.two
    assert runs.one["warm_digest"] == first["warm_digest"] == second["warm_digest"]


@pytest.mark.long
def test_ranks_that_compute_in_bfloat16_add_their_gradients_in_float32(tmp_path: Path) -> None:
    (one,), two = (run_ranks(BFLOAT16, tmp_path, world) for world in (1, 2))
    assert two[0] == two[1]
    for name, got in two[0]["together"].items():
        alone = torch.tensor([part[name] for part in one["alone"]])
        assert torch.equal(alone, alone.bfloat16().float())
        expected, got = alone.sum(0) / 2, torch.tensor(got)  # the mean over the ranks
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6 * float(expected.abs().max()))
        assert name.endswith("norm.weight") or not torch.equal(got, got.bfloat16().float()), name


@pytest.mark.long
def test_ranks_wait_for_the_first_one_longer_than_a_collective_may_take(tmp_path: Path) -> None:
    for rank in run_ranks(LATE, tmp_path, 2):
        assert rank == {"heard": "a plan", "everyone": 2.0}
