"""The newest groups that finished: in which order they are told, in which pages, and what of them changes later."""

import random

from support.queue.small_index import accept, both, finish, make_index, score

from streamrl.buffers.index.groups.group import Group, Row
from streamrl.buffers.index.groups.recent import RecentGroup, RecentGroups
from streamrl.types import FrameRef

FRAME = FrameRef("queue/completions/rollout-0-0-0.arrow", 0, 10, 64, 0, 0)


def group(number: int, *, rows: int, tokens: int = 3) -> Group:
    places = {(sample, 0): Row(FRAME, sample, 0, 4, tokens, 0, valid=True, reward=1.0) for sample in range(rows)}
    return Group(number, 0, 1, 0.0, 0, number, number, rows=places)


def told(page: list[RecentGroup]) -> list[tuple[int, list[int]]]:
    """(group, samples that are on the page)."""
    return [(one.number, [row.sample_index for row in one.rows[one.start : one.end]]) for one in page]


def test_pages_follow_each_other_without_a_gap_and_the_newest_group_comes_first() -> None:
    recent = RecentGroups()
    for number in (5, 2, 9):
        recent.finished(group(number, rows=3))
    first, place = recent.page(None, 4)
    assert told(first) == [(9, [0, 1, 2]), (2, [0])]
    assert len(first[1].rows) == 3, "a group is told with all of its rows: its mates are what it is compared with"
    recent.finished(group(7, rows=1))  # what is newer moves no page
    second, place = recent.page(place, 3)
    assert told(second) == [(2, [1, 2]), (5, [0])]
    third, place = recent.page(place, 200)
    assert (told(third), place) == ([(5, [1, 2])], None)
    assert told(recent.page(None, 1)[0]) == [(7, [0])]


def test_a_page_is_bounded_in_tokens_and_has_one_row_at_least() -> None:
    recent = RecentGroups(page_tokens=20)
    recent.finished(group(0, rows=3, tokens=4))
    recent.finished(group(1, rows=2, tokens=100))
    pages, place = [], None
    while True:
        page, place = recent.page(place, 10)
        pages.append(told(page))
        if place is None:
            break
    assert pages == [[(1, [0])], [(1, [1])], [(0, [0, 1])], [(0, [2])]]


def test_what_is_kept_is_bounded_in_rows_and_the_newest_group_always_is() -> None:
    recent = RecentGroups(rows_kept=7)
    for number in range(5):
        recent.finished(group(number, rows=3))
    assert [number for number, _ in told(recent.page(None, 200)[0])] == [4, 3]
    recent.finished(group(9, rows=8))
    assert [number for number, _ in told(recent.page(None, 200)[0])] == [9]


def test_every_row_is_on_one_page_whatever_the_pages_are() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    recent = RecentGroups(page_tokens=draw.randint(1, 60))
    sizes = [draw.randint(1, 9) for _ in range(30)]
    for number, size in enumerate(sizes):
        recent.finished(group(number, rows=size, tokens=draw.randint(1, 20)))
    seen, place = [], None
    while True:
        page, place = recent.page(place, draw.randint(1, 12))
        seen += [(number, sample) for number, samples in told(page) for sample in samples]
        if place is None:
            break
    assert seen == [(number, sample) for number in reversed(range(30)) for sample in range(sizes[number])]


def test_a_group_tells_the_step_that_trained_it_also_after_a_checkpoint_has_let_it_go() -> None:
    index = make_index(groups_per_step=1)
    index.issue("r", 0, 2)
    finish(index, 1)
    accept(index, [(0, 0)])
    assert [(one.number, one.step) for one in index.recent.page(None, 9)[0]] == [(1, None)]
    accept(index, [(0, 1)])
    score(index, both(0), valid=[True, False], reward=[0.5, float("nan")])
    (trained,) = set(index.lease(0).group.tolist())
    index.commit(0)
    index.cover(1)
    newest, older = index.recent.page(None, 9)[0]
    assert (newest.number, [row.reward for row in newest.rows], older.number) == (0, [0.5, None], 1)
    assert {one.number: one.step for one in (newest, older)} == {trained: 0, 1 - trained: None}


def test_going_back_takes_the_step_back_and_rows_that_are_lost_are_told_no_more() -> None:
    index = make_index(groups_per_step=1)
    index.issue("r", 0, 2)
    finish(index, 0)
    finish(index, 1)
    index.lease(0)
    index.commit(0)
    assert [one.step for one in index.recent.page(None, 9)[0]] == [None, 0]
    index.go_to(0)
    assert [one.step for one in index.recent.page(None, 9)[0]] == [None, None]
    index.lost.begin_again([1], 0)
    assert [one.number for one in index.recent.page(None, 9)[0]] == [0]
