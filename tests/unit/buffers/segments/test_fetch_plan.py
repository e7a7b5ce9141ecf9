"""What is fetched from other nodes, and what is kept: each frame once, and the copies within their bound."""

from hypothesis import given
from hypothesis import strategies as st

from streamrl.buffers.segments.fetch_plan import Fetch, FetchPlan
from streamrl.types import FrameRef

NODE = "nodes/0123456789ab/queue/completions"


def frame(place: int, *, segment: str = "a", length: int = 10) -> FrameRef:
    """The `place`-th of frames of 10 bytes that lie one behind the other."""
    return FrameRef(f"{NODE}/{segment}.arrow", 10 * place, length, 1, place, 7)


def frames(*places: int, segment: str = "a") -> list[FrameRef]:
    return [frame(place, segment=segment) for place in places]


def bring(plan: FetchPlan, reader: str, wanted: list[FrameRef]) -> list[Fetch]:
    """Ask, and have everything arrive at once."""
    begin = plan.want(reader, wanted).begin
    for fetch in begin:
        plan.arrived(fetch)
    return begin


def test_frames_that_lie_one_behind_the_other_travel_together_and_a_gap_parts_them():
    plan = FetchPlan(10**6)
    begin = plan.want("learner", frames(3, 0, 1, 5) + frames(4, segment="b")).begin
    assert [(fetch.path[-7], fetch.offset, fetch.length) for fetch in begin] == [
        ("a", 0, 20),
        ("a", 30, 10),
        ("a", 50, 10),
        ("b", 40, 10),
    ]


def test_a_fetch_holds_no_more_than_its_bound_but_one_frame_always():
    plan = FetchPlan(10**6, chunk_bytes=20)
    begin = plan.want("learner", [*frames(0, 1, 2), frame(3, length=50)]).begin
    assert [fetch.length for fetch in begin] == [20, 10, 50]


def test_a_frame_is_fetched_once_and_who_asks_meanwhile_waits_for_it():
    plan = FetchPlan(10**6)
    first = plan.want("reward", frames(0, 1))
    second = plan.want("learner", frames(1, 2))
    assert [fetch.frames for fetch in second.begin] == [tuple(frames(2))]
    assert second.coming == first.begin
    plan.arrived(first.begin[0])
    assert plan.want("reward", frames(0, 1)) == ([], [])
    assert plan.num_bytes == 20


def test_a_fetch_that_failed_is_begun_anew_by_who_asks_next():
    plan = FetchPlan(10**6)
    (fetch,) = plan.want("reward", frames(0)).begin
    plan.failed(fetch)
    assert plan.want("learner", frames(0)).begin == [fetch]
    assert plan.num_bytes == 0


def test_the_segment_asked_for_longest_ago_goes_first_and_what_a_reader_holds_stays():
    plan = FetchPlan(35)
    for reader, segment in zip(["learner", *["reward"] * 3, "learner", "learner"], "abcdaa", strict=True):
        bring(plan, reader, frames(0, segment=segment))
    bring(plan, "learner", frames(0, segment="d"))
    assert plan.evict() == [frame(0, segment="b").path]
    assert plan.num_bytes == 30
    assert plan.want("other", frames(0, segment="a")).begin == []
    assert [fetch.path for fetch in plan.want("other", frames(0, segment="b")).begin] == [frame(0, segment="b").path]


def test_a_successor_of_the_same_name_takes_over_what_a_dead_reader_held():
    plan = FetchPlan(5)
    bring(plan, "reward", frames(0, segment="a"))
    assert plan.evict() == []
    bring(plan, "reward", frames(0, segment="b"))
    assert plan.evict() == [frame(0, segment="a").path]


def test_what_an_earlier_process_left_counts_and_is_looked_at_before_it_is_fetched():
    plan = FetchPlan(10**6)
    plan.adopt(frame(0).path, 4096)
    assert plan.num_bytes == 4096
    assert plan.unknown(frames(0, 1) + frames(0, segment="b")) == frames(0, 1)
    plan.found(frame(0))
    assert plan.unknown(frames(0, 1)) == frames(1)
    assert [fetch.frames for fetch in plan.want("learner", frames(0, 1)).begin] == [tuple(frames(1))]


@given(st.data())
def test_on_any_schedule_frames_come_once_and_the_copies_keep_within_the_bound_but_for_what_is_held(data):
    bound = data.draw(st.integers(1, 120))
    plan, here, under_way = FetchPlan(bound, chunk_bytes=30), set(), {}
    held: dict[str, list[FrameRef]] = {}
    for _ in range(data.draw(st.integers(1, 12))):
        places = data.draw(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 5)), min_size=1, max_size=6))
        reader = data.draw(st.sampled_from(["reward", "learner"]))
        held[reader] = wanted = [frame(place, segment=segment) for segment, place in places]
        asked = plan.want(reader, wanted)
        fetched = [one for fetch in asked.begin for one in fetch.frames]
        assert len(fetched) == len(set(fetched))
        assert set(fetched) == set(wanted) - here - under_way.keys()
        assert {one for fetch in asked.coming for one in fetch.frames} >= set(wanted) & under_way.keys()
        under_way.update((one, fetch) for fetch in asked.begin for one in fetch.frames)
        for fetch in {id(fetch): fetch for fetch in under_way.values()}.values():
            if data.draw(st.booleans()):
                came = data.draw(st.booleans())
                (plan.arrived if came else plan.failed)(fetch)
                here |= set(fetch.frames) if came else set()
                under_way = {one: other for one, other in under_way.items() if other is not fetch}
        gone = set(plan.evict())
        here = {one for one in here if one.path not in gone}
        in_use = {one.path for wanted in held.values() for one in wanted} | {one.path for one in under_way}
        assert not gone & in_use
        assert plan.num_bytes == 10 * len(here)
        assert plan.num_bytes <= bound or {one.path for one in here} <= in_use
