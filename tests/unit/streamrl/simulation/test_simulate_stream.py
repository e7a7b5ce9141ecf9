"""The simulator: its books, its clock and its figures."""

import pytest

from streamrl.errors import ComponentError, ConfigError
from streamrl.simulation.book import GroupBook, Place
from streamrl.simulation.run import simulate
from streamrl.simulation.settings import SimulationReport, SimulationSettings


def quiet(**changes: object) -> SimulationSettings:
    """Two replicas of eight slots, equal groups of one second, no delays but the learner's."""
    arguments: dict[str, object] = {"steps": 100, "update_s": 0.0, "reward_s": 0.0}
    return SimulationSettings(**{**arguments, **changes})  # type: ignore[arg-type]


def long_tail(max_staleness: int) -> SimulationReport:
    """One group of 100 times the mean among 16,000; rollout and learner about equally fast."""
    settings = quiet(
        steps=2000, max_staleness=max_staleness, slots=2, heavy_tail=0.3, step_s=1.95, straggler=(5000, 100.0)
    )
    return simulate(settings, 0)


def test_the_same_seed_gives_the_same_report_and_another_seed_another_one() -> None:
    settings = quiet(heavy_tail=1.0, failure_rate=0.1)
    assert simulate(settings, 3) == simulate(settings, 3)
    assert simulate(settings, 3) != simulate(settings, 4)


def test_a_slow_learner_never_waits_after_its_first_batch() -> None:
    report = simulate(quiet(step_s=2.0), 0)
    assert report.elapsed_s == pytest.approx(1.0 + 100 * 2.0)
    assert report.learner_wait_share == pytest.approx(1.0 / 201.0)
    assert report.steps_per_s == pytest.approx(100 / 201.0)


def test_slow_replicas_are_always_busy() -> None:
    report = simulate(quiet(step_s=0.001, slots=1, max_staleness=4), 0)
    assert report.rollout_utilisation > 0.99
    assert report.elapsed_s == pytest.approx(100 * 8 / 2, rel=0.01)


def test_on_policy_takes_turns_and_has_no_staleness() -> None:
    report = simulate(quiet(max_staleness=0, step_s=0.5), 0)
    assert report.staleness_max == 0
    assert report.elapsed_s == pytest.approx(100 * 1.5)
    assert report.learner_wait_share == pytest.approx(1.0 / 1.5)


def test_invariant_11_books_are_closed_at_every_event() -> None:
    seen: list[tuple[int, int]] = []

    def look(book: GroupBook) -> None:
        places = sum(book.count(place) for place in Place)
        seen.append((book.issued, places))
        assert book.count(Place.DROPPED) == book.dropped.total()

    lossy = quiet(failure_rate=0.1, filter_rate=0.1, heavy_tail=1.0, late="reissue")
    report = simulate(lossy, 0, on_event=look)
    assert all(issued == places for issued, places in seen)
    assert seen[-1][0] == report.issued
    assert sum(report.discards.values()) > 0


def test_invariant_11_a_book_refuses_an_entry_that_is_not_so() -> None:
    book = GroupBook()
    book.issue(0)
    with pytest.raises(ComponentError, match="0 is issued twice; it is running"):
        book.issue(0)
    with pytest.raises(ComponentError, match="1 cannot go from running to waiting; it is unknown"):
        book.move(1, Place.RUNNING, Place.WAITING)
    book.drop(0, Place.RUNNING, "failed")
    with pytest.raises(ComponentError, match="0 cannot go from running to waiting; it is dropped"):
        book.move(0, Place.RUNNING, Place.WAITING)
    book.check_closed()


def test_invariant_11_a_book_that_does_not_close_says_what_it_holds() -> None:
    book = GroupBook()
    book.issue(0)
    book.issued += 1
    with pytest.raises(ComponentError, match="not closed: issued 2, entries 1"):
        book.check_closed()


def test_a_long_tail_idles_neither_replicas_nor_learner_at_a_bound_of_two(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reports = {bound: long_tail(bound) for bound in (0, 2, 4)}
    with capsys.disabled():
        for bound, report in reports.items():
            print(
                f"\nlong tail, one group 100x, max_staleness {bound}: rollout utilisation "
                f"{report.rollout_utilisation:.3f}, learner wait {report.learner_wait_share:.3f}, "
                f"{report.steps_per_s:.3f} steps/s",
                end="",
            )
    assert all(report.discards == {} and not report.deadlocked for report in reports.values())
    assert reports[0].rollout_utilisation < 0.5 < reports[0].learner_wait_share
    for bound in (2, 4):
        assert reports[bound].rollout_utilisation >= 0.95
        assert reports[bound].learner_wait_share <= 0.10
        assert reports[bound].staleness_max <= bound


@pytest.mark.parametrize(("key", "value"), [("steps", 0), ("group_s", 0.0), ("failure_rate", 1.0), ("step_s", -1.0)])
def test_settings_without_a_meaning_are_refused_by_name(key: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{key} is {value}"):
        quiet(**{key: value})
