"""Which rank the others wait for."""

from streamrl.learner.parallel.late_ranks import Progress, who_is_late

WAITS = Progress(4, "forward_backward", "distributed/distributed_c10d.py:2806 all_reduce", waits=True)
GAVE_UP = Progress(4, "forward_backward")
READS = Progress(4, "read", "segments/reader.py:81 read")
COMPUTES = Progress(4, "forward_backward", "attention/packed.py:40 attend_pack")


def late(*found: Progress | None) -> str:
    return who_is_late(dict(enumerate(found)), lambda rank: f"learner-{rank}")


def test_a_rank_that_does_not_answer_is_named_with_where_the_others_are() -> None:
    assert late(WAITS, None) == (
        "the others wait for learner-1: no answer, so its process is stopped or stands still (learner-0 in "
        "forward_backward of step 4 at distributed/distributed_c10d.py:2806 all_reduce)"
    )


def test_of_ranks_that_answer_the_one_that_is_in_no_collective_is_named_with_its_phase_and_place() -> None:
    for others in (WAITS, GAVE_UP):
        text = late(others, COMPUTES, others)
        assert text.startswith(
            "the others wait for learner-1 in forward_backward of step 4 at attention/packed.py:40 attend_pack (learner"
        )
        assert "learner-2" in text


def test_where_all_compute_the_one_that_is_furthest_behind_is_named() -> None:
    assert late(COMPUTES, READS).startswith("the others wait for learner-1 in read of step 4")
    before = Progress(3, "forward_backward", "attention/packed.py:40 attend_pack")
    assert late(before, READS).startswith("the others wait for learner-0 in forward_backward of step 3")


def test_a_rank_in_what_follows_an_update_is_behind_one_that_takes_the_next_batch() -> None:
    assert late(Progress(5, "checkpoint", "a.py:1 f"), Progress(5, "wait", "b.py:1 g")).startswith(
        "the others wait for learner-0 in checkpoint of step 5"
    )


def test_one_rank_alone_is_told_with_its_place() -> None:
    assert late(READS) == "learner-0 was in read of step 4 at segments/reader.py:81 read"
    assert late(None) == "learner-0 was silent: its process stands still"


def test_where_all_are_equally_far_none_is_blamed() -> None:
    assert late(WAITS, WAITS).startswith("no rank is behind the others: learner-0 in forward_backward of step 4 at")
    assert late(COMPUTES, COMPUTES).startswith("no rank is behind the others")
