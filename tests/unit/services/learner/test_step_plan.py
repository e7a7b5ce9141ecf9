"""The plan of a step: every row to one rank, the same sums for all, the same bytes on every rank."""

from itertools import pairwise

import numpy as np
import pytest
from support.learner.small_lease import lease

from streamrl.config import Config
from streamrl.config.schema.learner import LearnerConfig
from streamrl.errors import ComponentError
from streamrl.services.learner.step_plan import STOP, decode, encode, make_plan, share_of, shares_of
from streamrl.services.reward.actor import FailureShare
from streamrl.services.rollout.rows import finite
from streamrl.types import FinishReason, GenerationResult, Score, Version, VersionSpan


def config(*, ranks: int, shares: int | None = None, mini_batches: int = 1) -> Config:
    return Config(learner=LearnerConfig(num_workers=ranks, shares=shares, mini_batches=mini_batches))


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_row_is_one_ranks_and_keeps_its_columns(ranks: int) -> None:
    given = lease(rows=37, seed=ranks)
    plan = decode(encode(make_plan(given, config(ranks=ranks), hidden_size=64)))
    shares = [share_of(plan, 0, rank) for rank in range(ranks)]
    rows = np.concatenate([share.row for share in shares])
    assert sorted(rows.tolist()) == list(range(37))
    for share in shares:
        np.testing.assert_array_equal(share.rewards, given.rewards[share.row])
        np.testing.assert_array_equal(share.group, given.group[share.row])
        np.testing.assert_array_equal(share.frame_index, given.frame_index[share.row])
        assert (np.diff(share.row) > 0).all()
        np.testing.assert_array_equal(share.advantages, np.frombuffer(plan.advantages)[share.row])
        np.testing.assert_array_equal(share.sample_index, given.sample_index[share.row])
        np.testing.assert_array_equal(share.valid, given.valid[share.row])


def test_shares_are_the_same_rows_in_the_same_order_whatever_the_number_of_ranks() -> None:
    given = lease(rows=40, seed=6)
    dealt = []
    for ranks in (1, 2, 4):
        settings = config(ranks=ranks, shares=4)
        plan = make_plan(given, settings, hidden_size=64)
        held = [shares_of(plan, rank, settings)[0] for rank in range(ranks)]
        assert [len(shares) for shares in held] == [4 // ranks] * ranks
        dealt.append([share.row.tolist() for shares in held for share in shares])
    assert dealt[0] == dealt[1] == dealt[2]
    assert sorted(row for share in dealt[0] for row in share) == list(range(40))


def test_advantages_and_sums_do_not_depend_on_the_number_of_ranks() -> None:
    given = lease(rows=40, seed=5)
    one, three = (make_plan(given, config(ranks=ranks), hidden_size=64) for ranks in (1, 3))
    assert (one.advantages, one.total_tokens, one.total_rows) == (
        three.advantages,
        three.total_tokens,
        three.total_rows,
    )


def test_invariant_8_rows_without_a_score_are_in_no_sum_and_have_no_advantage() -> None:
    given = lease(rows=40, seed=6)
    plan = make_plan(given, config(ranks=1), hidden_size=64)
    trained = given.valid & (given.sampled_tokens > 0)
    assert plan.total_tokens == [given.sampled_tokens[trained].sum()]
    assert plan.total_rows == [trained.sum()]
    assert (share_of(plan, 0, 0).advantages[~given.valid] == 0).all()


@pytest.mark.parametrize(("mini_batches", "sizes"), [(1, [40]), (2, [20, 20]), (4, [12, 8, 12, 8]), (10, [4] * 10)])
def test_mini_batches_are_whole_groups_in_order_with_sums_of_their_own(mini_batches: int, sizes: list[int]) -> None:
    given = lease(rows=40, seed=8)
    settings = config(ranks=2, mini_batches=mini_batches)
    plan = decode(encode(make_plan(given, settings, hidden_size=64)))
    both = [shares_of(plan, rank, settings) for rank in range(2)]
    rows = [np.sort(np.concatenate([share.row for rank in both for share in rank[n]])) for n in range(mini_batches)]
    assert [len(part) for part in rows] == sizes
    np.testing.assert_array_equal(np.concatenate(rows), np.arange(40))
    assert all(len(set(given.group[one]) & set(given.group[two])) == 0 for one, two in pairwise(rows))
    trained = given.valid & (given.sampled_tokens > 0)
    assert plan.total_rows == [trained[part].sum() for part in rows]
    assert plan.total_tokens == [given.sampled_tokens[part][trained[part]].sum() for part in rows]
    whole = make_plan(given, config(ranks=2), hidden_size=64)
    assert plan.advantages == whole.advantages


def test_there_are_no_more_mini_batches_than_groups() -> None:
    settings = config(ranks=1, mini_batches=7)
    plan = make_plan(lease(rows=9, seed=2), settings, hidden_size=64)
    assert [len(mini_batch[0].row) for mini_batch in shares_of(plan, 0, settings)] == [4, 4, 1]


def test_the_stop_plan_survives_the_wire() -> None:
    assert decode(encode(STOP)).step == -1


def test_invariant_8_too_many_failed_scores_stop_the_run_with_the_last_reason() -> None:
    share = FailureShare(window=10, limit=0.2)
    share.add([Score.ok(1.0)] * 8 + [Score.failed("ValueError: a")] * 2)
    with pytest.raises(ComponentError, match=r"3 of the last 10 .* reward\.max_failed = 0\.2 .* TypeError: b"):
        share.add([Score.failed("TypeError: b")])


def test_invariant_8_old_failures_are_forgotten() -> None:
    share = FailureShare(window=4, limit=0.25)
    share.add([Score.failed("a"), *[Score.ok(0.0)] * 3])
    share.add([Score.ok(0.0), Score.failed("b"), Score.ok(0.0), Score.ok(0.0)])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_invariant_12_a_completion_with_a_non_finite_logprob_becomes_an_error(value: float) -> None:
    logprobs = np.array([-0.5, value], np.float32)
    spans = (VersionSpan(0, Version(0, 1)),)
    result = GenerationResult("r", np.array([3, 4], np.int32), logprobs, spans, FinishReason.STOP)
    gated = finite(result, "rollout-1")
    assert gated.finish_reason is FinishReason.ERROR
    assert "token 1 from rollout-1" in gated.error
    assert len(gated.token_ids) == len(gated.logprobs) == 0
    sound = GenerationResult("r", result.token_ids, np.zeros(2, np.float32), spans, FinishReason.STOP)
    assert finite(sound, "rollout-1") is sound
