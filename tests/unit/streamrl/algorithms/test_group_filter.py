"""Dynamic sampling: which groups are filtered, what becomes of their places, and what a restart makes of it."""

import asyncio

import msgspec
import numpy as np
import pytest
from support.queue.queue_parts import Parts, both, groups_of, kill, open_queue, turn
from support.queue.small_index import Order, accept, accepted, assert_books_close, frame, queue_settings, score

from streamrl.algorithms.group_filter import reason_to_filter
from streamrl.buffers.index.groups.group import Group, Row
from streamrl.buffers.index.groups.group_filter import GroupFilter
from streamrl.buffers.index.replay_index import ReplayIndex
from streamrl.buffers.ledger.ledger import Ledger, read_ledger
from streamrl.buffers.ledger.records import Dropped
from streamrl.buffers.segments.places import LEDGER_DIR
from streamrl.clock import VirtualClock
from streamrl.config.schema.learner import FilterConfig
from streamrl.errors import ComponentError
from streamrl.services.actors.filtered_share import FilteredShare
from streamrl.types import Version

ZERO_VARIANCE = FilterConfig(zero_variance=True)
WINDOW = FilterConfig(low=0.25, high=0.75)


def make_index(rule: FilterConfig, **options) -> ReplayIndex:
    settings = msgspec.structs.replace(queue_settings(**options), filter=rule)
    return ReplayIndex(settings, Order(), VirtualClock())


def end_group(index: ReplayIndex, number: int, rewards: list[float]) -> None:
    """Accept and score a group; a reward of NaN is a failed score."""
    keys = [(number, sample) for sample in range(len(rewards))]
    accept(index, keys, offset=100 * number)
    score(index, keys, valid=~np.isnan(rewards), reward=rewards)


@pytest.mark.parametrize(
    ("rewards", "rule", "reason"),
    [
        ([0.1] * 7, ZERO_VARIANCE, "zero_variance"),
        ([0.7] * 6, ZERO_VARIANCE, "zero_variance"),
        ([0.1] * 6 + [0.1 + 2**-54], ZERO_VARIANCE, ""),
        ([1.0, 1.0], FilterConfig(), ""),
        ([0.0, 1.0], WINDOW, ""),
        ([0.0, 0.0, 0.0, 1.0], WINDOW, ""),
        ([0.0] * 4 + [1.0], WINDOW, "too_hard"),
        ([0.0] + [1.0] * 3, WINDOW, ""),
        ([0.0] + [1.0] * 4, WINDOW, "too_easy"),
        ([0.1] * 7, FilterConfig(low=0.1, high=0.1), ""),
        ([-2.0, -1.0], FilterConfig(high=-1.75), "too_easy"),
        ([1.0, 1.0], FilterConfig(zero_variance=True, high=0.5), "zero_variance"),
    ],
)
def test_a_group_is_filtered_for_equal_rewards_or_a_mean_outside_the_window(rewards, rule, reason):
    assert reason_to_filter(rewards, rule) == reason


@pytest.mark.parametrize(
    ("rewards", "cut_off", "reason"),
    [
        ([0.0, 1.0, 1.0], [False, False, False], ""),
        ([0.0, 1.0, 1.0], [True, True, False], "truncated"),  # what is left is only compared with
        ([0.0, 1.0, 1.0], [True, False, True], ""),
        ([0.0, 1.0, np.nan], [False, False, False], "reward_failed"),  # and nothing is left to compare with
        ([np.nan, np.nan, 1.0], [False, False, False], "reward_failed"),
        ([np.nan, 1.0, 0.0], [False, False, False], ""),
        ([np.nan, 1.0, 0.0], [False, True, False], "truncated"),
    ],
)
def test_the_greedy_sample_is_what_the_others_are_compared_with_and_is_not_trained(rewards, cut_off, reason):
    settings = msgspec.structs.replace(queue_settings(group_size=3), mask_truncated=True, greedy_sample=2)
    group = Group(number=0, attempt=0, last_step=0, issued_at=0.0, reserved=0, position=0, item=0)
    for sample, (reward, truncated) in enumerate(zip(rewards, cut_off, strict=True)):
        valid = not np.isnan(reward)
        group.rows[sample, 0] = Row(
            frame(rows=3), sample, 0, 1, 1, 0, truncated=truncated, scored=True, valid=valid, reward=reward
        )
    assert GroupFilter(settings).drop_reason(group) == reason


def test_0_1_and_its_neighbour_differ():
    assert 0.1 + 2**-54 != 0.1  # which the case above rests on


def test_a_filtered_group_gives_its_place_and_its_bytes_back_and_the_next_of_the_data_comes():
    index = make_index(ZERO_VARIANCE, group_size=3, groups_per_step=2, max_staleness=0)
    assert [ticket.number for ticket in index.issue("r", 0, 9)] == [0, 1]
    end_group(index, 0, [1.0, 1.0, 1.0])
    end_group(index, 1, [0.0, 1.0, 1.0])
    counts = index.counts()
    assert counts.groups_dropped == {"zero_variance": 1}
    assert (counts.groups_ready, counts.tokens_dropped, counts.bytes_held) == (1, 9, 30)
    assert_books_close(counts)
    assert index.lease(0) is None
    assert [ticket.number for ticket in index.issue("r", 0, 9)] == [2]
    end_group(index, 2, [0.0, 0.0, 1.0])
    assert sorted(set(index.lease(0).group.tolist())) == [1, 2]
    assert_books_close(index.counts())


def test_only_valid_scores_count_and_a_group_with_too_few_of_them_has_failed():
    index = make_index(ZERO_VARIANCE, group_size=3)
    index.issue("r", 0, 3)
    end_group(index, 0, [np.nan, 1.0, 1.0])
    end_group(index, 1, [1.0, np.nan, np.nan])
    end_group(index, 2, [1.0, 0.5, np.nan])
    assert index.counts().groups_dropped == {"zero_variance": 1, "reward_failed": 1}
    assert index.pop_dropped() == {"zero_variance": [0], "reward_failed": [1]}
    assert index.counts().groups_ready == 1


def test_every_branch_of_a_rollout_counts():
    index = make_index(ZERO_VARIANCE)
    index.issue("r", 0, 1)
    keys = [(0, 0, 0), (0, 0, 1), (0, 1, 0)]
    # The branches are told of in one frame with the rollout's, as a replica does.
    index.accept(frame(rows=3), accepted(keys))
    score(index, keys, reward=[1.0, 0.5, 1.0])
    assert index.counts().groups_ready == 1


def test_groups_filtered_in_a_row_end_the_wait_for_a_batch_and_one_that_is_kept_begins_anew():
    index = make_index(FilterConfig(zero_variance=True, limit=2), max_staleness=9)
    index.issue("r", 0, 6)
    end_group(index, 0, [1.0, 1.0])
    end_group(index, 1, [0.0, 1.0])
    end_group(index, 2, [1.0, 1.0])
    assert index.lease(0) is None
    end_group(index, 3, [0.0, 0.0])
    with pytest.raises(ComponentError, match=r"step 0 .* last 2 groups .* zero_variance, .*learner.filter.limit is 2"):
        index.lease(0)
    end_group(index, 4, [0.0, 1.0])
    assert sorted(set(index.lease(0).group.tolist())) == [1, 4]


def test_a_batch_that_is_full_is_leased_whatever_was_filtered_after_it():
    index = make_index(FilterConfig(zero_variance=True, limit=1), groups_per_step=1)
    index.issue("r", 0, 2)
    end_group(index, 0, [0.0, 1.0])
    end_group(index, 1, [1.0, 1.0])
    assert index.lease(0).group.tolist() == [0, 0]


async def test_invariant_11_random_rewards_close_the_books_and_fill_every_batch_with_kept_groups(tmp_path):
    seed = int(np.random.SeedSequence().entropy % 2**32)
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    rewards: dict[tuple[int, int], float] = {}
    parts = Parts(open_queue(tmp_path, filter=ZERO_VARIANCE, max_staleness=1), tmp_path)
    for step in range(12):
        learner = asyncio.ensure_future(parts.queue.lease(step))
        await turn()
        while not learner.done():
            for ticket in await parts.queue.take("r", 0, Version(0, step), 3):
                rewards.update({key: float(random.random() < 0.5) for key in both(ticket.number)})
                await parts.accept(both(ticket.number), oldest=step)
            await parts.score_waiting(reward=lambda number, sample: rewards[number, sample])
            await turn()
        assert all(rewards[number, 0] != rewards[number, 1] for number in groups_of(learner.result()))
        await parts.queue.commit(step)
        assert_books_close(parts.queue.counts())
    counts = parts.queue.counts()
    equal = [number for number in range(counts.groups_issued) if rewards[number, 0] == rewards[number, 1]]
    assert counts.groups_dropped == ({"zero_variance": len(equal)} if equal else {})
    parts.queue.close()


async def a_filtered_queue(run) -> Parts:
    """Groups 0 and 3 of four are filtered."""
    parts = Parts(open_queue(run, filter=ZERO_VARIANCE), run)
    for ticket in await parts.queue.take("r", 0, Version(0, 0), 4):
        await parts.accept(both(ticket.number))
    await parts.score_waiting(reward=lambda number, sample: float(number in (1, 2) and sample))
    return parts


async def test_after_a_restart_the_same_groups_are_filtered_and_the_batch_is_the_same(tmp_path):
    parts = await a_filtered_queue(tmp_path)
    before = parts.queue.counts()
    assert groups_of(await parts.queue.lease(0)) == [1, 2]
    kill(parts.queue)
    back = open_queue(tmp_path, filter=ZERO_VARIANCE)
    after = back.counts()
    assert after.groups_dropped == before.groups_dropped == {"zero_variance": 2}
    assert (after.tokens_dropped, after.bytes_held) == (before.tokens_dropped, before.bytes_held)
    assert groups_of(await back.lease(0)) == [1, 2]
    back.close()


async def test_a_run_that_was_ended_for_what_it_filtered_tries_anew_when_it_goes_on(tmp_path):
    rule = FilterConfig(zero_variance=True, limit=2)
    parts = Parts(open_queue(tmp_path, filter=rule), tmp_path)
    await parts.queue.take("r", 0, Version(0, 0), 2)
    learner = asyncio.ensure_future(parts.queue.lease(0))
    for number in (0, 1):
        await turn()
        assert not learner.done()
        await parts.accept(both(number))
        await parts.score_waiting(reward=lambda number, sample: 1.0)
    with pytest.raises(ComponentError, match="filter"):
        await learner
    kill(parts.queue)
    back = Parts(open_queue(tmp_path, filter=rule), tmp_path, epoch=1)
    learner = asyncio.ensure_future(back.queue.lease(0))
    await turn()
    assert not learner.done()
    for ticket in await back.queue.take("r", 1, Version(1, 0), 2):
        await back.accept(both(ticket.number))
    await back.score_waiting()
    assert groups_of(await learner) == [2, 3]
    back.queue.close()


def without_last_record(run) -> None:
    """The ledger of a process that died just before it wrote its last record."""
    (file,) = read_ledger(run / LEDGER_DIR)
    file.path.unlink()
    ledger = Ledger(run / LEDGER_DIR, file.records[0], durability="disk", commit_interval_s=0.0)
    for record in file.records[1:-1]:
        ledger.append(record).result()
    ledger._committer.close()


async def test_a_drop_is_recorded_with_its_reason_and_one_whose_record_was_lost_is_recorded_by_the_next_opening(
    tmp_path,
):
    parts = await a_filtered_queue(tmp_path)
    kill(parts.queue)
    (file,) = read_ledger(tmp_path / LEDGER_DIR)
    dropped = [record for record in file.records if isinstance(record, Dropped)]
    assert sorted(number for record in dropped for number in record.numbers) == [0, 3]
    assert {record.reason for record in dropped} == {"zero_variance"}
    assert file.records[-1] == dropped[-1]
    without_last_record(tmp_path)
    back = open_queue(tmp_path, filter=ZERO_VARIANCE)
    assert back.counts().groups_dropped == {"zero_variance": 2}
    back.close()
    newest = read_ledger(tmp_path / LEDGER_DIR)[-1]
    assert [record for record in newest.records if isinstance(record, Dropped)] == [dropped[-1]]
    third = open_queue(tmp_path, filter=ZERO_VARIANCE)
    assert third.counts().groups_dropped == {"zero_variance": 2}
    third.close()
    assert not [one for one in read_ledger(tmp_path / LEDGER_DIR)[-1].records if isinstance(one, Dropped)]


def test_the_share_of_filtered_groups_is_of_those_that_ended_since_the_last_line():
    share = FilteredShare()

    def counts(dropped, *, ready, trained):
        return {"groups_dropped": dropped, "groups_ready": ready, "groups_leased": 0, "groups_trained": trained}

    assert share.since_last(counts({"zero_variance": 1, "late": 7}, ready=1, trained=2)) == 0.25
    assert share.since_last(counts({"zero_variance": 1}, ready=0, trained=4)) == 0.0
    assert share.since_last(counts({"zero_variance": 2, "too_easy": 1, "too_hard": 1}, ready=0, trained=5)) == 0.75
    assert share.since_last(counts({"zero_variance": 2, "too_easy": 1, "too_hard": 1}, ready=0, trained=5)) == 0.0
