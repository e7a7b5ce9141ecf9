"""Policy and critic over two gloo ranks: equal to one, on two shares to the bit, and stopped together."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.learner.rank_processes import run_ranks

PROGRAM = Path(__file__).with_name("critic_rank.py")
CRITIC = ("critic/loss", "critic/explained_variance", "critic/value_mean", "critic/clip_fraction", "critic/grad_norm")
POLICY = ("loss/policy", "grad/norm")
OF_POLICY = ("ratio/mean", "mismatch/kl")

pytestmark = pytest.mark.long


class Runs(NamedTuple):
    two: list[dict[str, Any]]
    one: dict[str, Any]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("ranks")
    return Runs(run_ranks(PROGRAM, folder, 2), run_ranks(PROGRAM, folder, 1)[0])


def test_on_two_shares_one_rank_and_two_make_equal_policies_and_critics(runs: Runs) -> None:
    first, second = runs.two
    assert runs.one["shared_digests"] == first["shared_digests"] == second["shared_digests"]
    assert runs.one["state_digest"] == first["state_digest"]
    for one, two in zip(runs.one["shared_metrics"], first["shared_metrics"], strict=True):
        for key in ("grad/norm", "critic/grad_norm", "critic/value_mean", "critic/explained_variance"):
            assert one[key] == two[key], key
    assert runs.one["head"] > 0.0, "the critic learned nothing: nothing was tested"
    assert runs.one["shared_metrics"][-1]["critic/clip_fraction"] > 0.0


def test_two_ranks_agree_with_one_to_1e_5_where_nothing_divides_evenly(runs: Runs) -> None:
    first, second = runs.two
    for step, (one, two) in enumerate(zip(runs.one["odd_metrics"], first["odd_metrics"], strict=True)):
        for key in (*CRITIC, *POLICY, *(OF_POLICY if step else ())):
            assert one[key] == pytest.approx(two[key], rel=1e-5, abs=1e-5), (step, key)
    for one, two in zip(first["odd_metrics"], second["odd_metrics"], strict=True):
        assert all(one[key] == two[key] for key in (*CRITIC, *POLICY))


def test_on_two_shares_one_rank_and_two_agree_where_tokens_pay_their_divergence(runs: Runs) -> None:
    first, second = runs.two
    assert runs.one["held_digest"] == first["held_digest"] == second["held_digest"]
    assert runs.one["held_digest"] != runs.one["shared_digests"][0]
    for one, two in zip(runs.one["held_metrics"], first["held_metrics"], strict=True):
        assert one["reward/kl"] == pytest.approx(two["reward/kl"], rel=1e-12)
        assert one["reward/kl"] > 0.0
    assert [one["reward/kl"] for one in first["held_metrics"]] == [two["reward/kl"] for two in second["held_metrics"]]


def test_invariant_12_a_value_that_is_not_finite_on_one_rank_stops_all_and_one_names_the_row(runs: Runs) -> None:
    other, holder = (rank["broken"] for rank in runs.two)
    assert "another rank has the row" in other["raised"]
    for who in (holder, runs.one["broken"]):
        assert "nan in group" in who["raised"]
        assert "under version step 5" in who["raised"]
    assert all(who["same"] for who in (other, holder, runs.one["broken"]))
