"""Policy and implicit reward model over two gloo ranks: equal to one, on two shares to the bit; stopped together."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.learner.rank_processes import run_ranks

PROGRAM = Path(__file__).with_name("prime_rank.py")
OF_MODEL = ("prime/loss", "prime/reward_mean", "prime/row_reward_abs_max", "prime/grad_norm")
OF_POLICY = ("loss/policy", "grad/norm", "ratio/mean", "mismatch/kl")

pytestmark = pytest.mark.long


class Runs(NamedTuple):
    two: list[dict[str, Any]]
    one: dict[str, Any]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("ranks")
    return Runs(run_ranks(PROGRAM, folder, 2), run_ranks(PROGRAM, folder, 1)[0])


def test_on_two_shares_one_rank_and_two_make_equal_policies_and_implicit_reward_models(runs: Runs) -> None:
    first, second = runs.two
    assert runs.one["shared_digests"] == first["shared_digests"] == second["shared_digests"]
    assert runs.one["state_digest"] == first["state_digest"]
    for one, two in zip(runs.one["shared_metrics"], first["shared_metrics"], strict=True):
        for key in ("grad/norm", "prime/grad_norm", "prime/reward_mean", "prime/accuracy", "prime/loss"):
            assert one[key] == two[key], key
    assert runs.one["shared_metrics"][-1]["prime/reward_mean"] != 0.0, "nothing was learned: nothing was tested"


def test_two_ranks_agree_with_one_to_1e_5_where_nothing_divides_evenly(runs: Runs) -> None:
    first, second = runs.two
    for step, (one, two) in enumerate(zip(runs.one["odd_metrics"], first["odd_metrics"], strict=True)):
        for key in (*OF_MODEL, *OF_POLICY, "prime/accuracy"):
            assert one[key] == pytest.approx(two[key], rel=1e-5, abs=1e-5), (step, key)
    for one, two in zip(first["odd_metrics"], second["odd_metrics"], strict=True):
        assert all(one[key] == two[key] for key in (*OF_MODEL, *OF_POLICY, "prime/accuracy"))


def test_invariant_12_a_reward_that_is_not_finite_on_one_rank_stops_all_and_one_names_the_row(runs: Runs) -> None:
    other, holder = (rank["broken"] for rank in runs.two)
    assert "another rank has the row" in other["raised"]
    for who in (holder, runs.one["broken"]):
        assert "nan in group" in who["raised"]
        assert "under version step 5" in who["raised"]
    assert all(who["same"] for who in (other, holder, runs.one["broken"]))
