"""The thread that owns an engine: nothing is lost, versions change between steps, failures are heard."""

import queue
from collections.abc import Callable
from concurrent.futures import CancelledError

import numpy as np
import pytest

from streamrl.config.schema.rollout import ScriptedConfig
from streamrl.engines.scripted import ScriptedEngine
from streamrl.errors import ComponentError
from streamrl.services.rollout.engine_thread import SPARE_EVERY, EngineThread
from streamrl.types import GenerationRequest, GenerationResult, SamplingParams, UpdateMode, Version

LIMIT_S = 20.0


def engine(*, latency_steps: int = 4, slots: int = 8) -> ScriptedEngine:
    return ScriptedEngine(ScriptedConfig(latency_steps=latency_steps), slots=slots, vocab_size=16, eos_token_id=2)


def requests(*, count: int, first: int = 0, most: int = 64) -> list[GenerationRequest]:
    sampling = SamplingParams(max_new_tokens=most)
    prompt = np.array([1, 4, 5], np.int32)
    return [GenerationRequest(f"r{first + i}", prompt, first + i, sampling, (2,)) for i in range(count)]


class Inbox:
    """Collects what a thread delivers; `until` waits for it without sleeping."""

    def __init__(self) -> None:
        self.deliveries: queue.Queue[tuple[list[GenerationResult], bool] | BaseException] = queue.Queue()
        self.results: list[GenerationResult] = []
        self.idle = 0

    def deliver(self, results: list[GenerationResult], idle: bool) -> None:
        self.deliveries.put((results, idle))

    def until(self, done: Callable[[], bool]) -> None:
        while not done():
            delivery = self.deliveries.get(timeout=LIMIT_S)
            if isinstance(delivery, BaseException):
                raise delivery
            self.results += delivery[0]
            self.idle += delivery[1]


def start(inbox: Inbox, **settings: int) -> EngineThread:
    thread = EngineThread(lambda: engine(**settings), inbox.deliver, inbox.deliveries.put)
    thread.start().result(LIMIT_S)
    return thread


def test_every_submitted_request_comes_back_once_and_the_last_delivery_says_idle() -> None:
    inbox = Inbox()
    thread = start(inbox)
    for batch in range(5):
        thread.submit(requests(count=10, first=10 * batch))
    inbox.until(lambda: len(inbox.results) == 50 and inbox.idle > 0)
    thread.stop(LIMIT_S)
    assert sorted(result.request_id for result in inbox.results) == sorted(f"r{i}" for i in range(50))


def test_what_runs_is_reported_every_so_many_steps_and_at_the_end() -> None:
    inbox, pieces = Inbox(), queue.Queue()
    thread = EngineThread(
        lambda: engine(latency_steps=10**6),
        inbox.deliver,
        inbox.deliveries.put,
        report=pieces.put,
        report_every=8,
    )
    # Before the first step, so that the first report is of both.
    submitted = thread.submit(requests(count=2, most=10**7))
    thread.start().result(LIMIT_S)
    submitted.result(LIMIT_S)
    told = [pieces.get(timeout=LIMIT_S) for _ in range(3)]
    thread.stop(LIMIT_S)
    while not pieces.empty():
        told.append(pieces.get())
    assert all({one.request_id for one in report} == {"r0", "r1"} for report in told)
    ends = [0, *(report[0].end for report in told)]
    assert [report[0].start for report in told] == ends[:-1]
    assert ends[1:4] == [8, 16, 24]


def test_what_ran_when_it_was_stopped_is_reported_last() -> None:
    inbox, pieces = Inbox(), queue.Queue()
    thread = EngineThread(engine, inbox.deliver, inbox.deliveries.put, report=pieces.put, report_every=10**9)
    thread.call(lambda one: (one.submit(requests(count=2)), one.step(), thread.stop()))
    thread.start().result(LIMIT_S)
    told = pieces.get(timeout=LIMIT_S)
    assert {(one.request_id, one.start) for one in told} == {("r0", 0), ("r1", 0)}


def test_without_a_number_of_steps_nothing_is_reported() -> None:
    inbox, pieces = Inbox(), queue.Queue()
    thread = EngineThread(engine, inbox.deliver, inbox.deliveries.put, report=pieces.put)
    thread.start().result(LIMIT_S)
    thread.submit(requests(count=4))
    inbox.until(lambda: len(inbox.results) == 4)
    thread.stop(LIMIT_S)
    assert pieces.empty()


def test_invariant_6_a_drained_load_is_done_only_when_the_new_version_answers() -> None:
    inbox, made = Inbox(), engine(latency_steps=32)
    thread = EngineThread(lambda: made, inbox.deliver, inbox.deliveries.put)
    thread.call(lambda one: (one.submit(requests(count=4)), one.step()))
    loaded, answers = thread.load({}, Version(0, 1), UpdateMode.DRAIN), []
    # Called in the engine thread, at the moment of the answer.
    loaded.add_done_callback(lambda _: answers.append(made.version))
    thread.start().result(LIMIT_S)
    loaded.result(LIMIT_S)
    inbox.until(lambda: len(inbox.results) == 4)
    thread.stop(LIMIT_S)
    assert answers == [Version(0, 1)]
    assert {span.version for result in inbox.results for span in result.version_spans} == {Version(0, 0)}


def test_invariant_6_a_load_that_the_engine_refuses_is_not_told_as_done() -> None:
    inbox = Inbox()
    thread = start(inbox)
    thread.load({}, Version(0, 2), UpdateMode.KEEP).result(LIMIT_S)
    with pytest.raises(ComponentError, match="refused"):
        thread.load({}, Version(0, 1), UpdateMode.KEEP).result(LIMIT_S)
    version = thread.call(lambda one: one.version).result(LIMIT_S)
    thread.stop(LIMIT_S)
    assert version == Version(0, 2)


def test_invariant_7_whoever_waits_for_a_thread_that_ends_is_told() -> None:
    inbox = Inbox()
    thread = start(inbox, latency_steps=10**6)
    thread.call(lambda one: (one.submit(requests(count=1, most=10**7)), one.step())).result(LIMIT_S)
    drained = thread.load({}, Version(0, 1), UpdateMode.DRAIN)
    thread.stats().result(LIMIT_S)
    told_late = thread.load({}, Version(0, 2), UpdateMode.DRAIN)
    spare = thread.run_spare(Counted(10**9))
    thread.stop(LIMIT_S)
    for waiting in (drained, told_late, spare):
        with pytest.raises(CancelledError):
            waiting.result(LIMIT_S)


def test_invariant_7_a_load_that_the_thread_never_came_to_is_told_too() -> None:
    inbox = Inbox()

    def make() -> ScriptedEngine:
        thread.stop()
        return engine()

    thread = EngineThread(make, inbox.deliver, inbox.deliveries.put)
    loaded = thread.load({}, Version(0, 1), UpdateMode.KEEP)
    thread.start().result(LIMIT_S)
    with pytest.raises(CancelledError):
        loaded.result(LIMIT_S)


def test_a_kept_load_takes_effect_in_the_middle_of_a_request_and_says_where() -> None:
    inbox = Inbox()
    thread = EngineThread(lambda: engine(latency_steps=32), inbox.deliver, inbox.deliveries.put)
    stepped = thread.call(lambda one: (one.submit(requests(count=2)), one.step()))
    loaded = thread.load({}, Version(0, 1), UpdateMode.KEEP)
    thread.start().result(LIMIT_S)
    stepped.result(LIMIT_S)
    loaded.result(LIMIT_S)
    inbox.until(lambda: len(inbox.results) == 2)
    thread.stop(LIMIT_S)
    for result in inbox.results:
        assert [(span.start, span.version) for span in result.version_spans] == [(0, Version(0, 0)), (1, Version(0, 1))]


class Counted:
    """Spare work of so many steps; each says in `log` that it was done."""

    def __init__(self, steps: int, log: list[str] | None = None) -> None:
        self.left = steps
        self.log = log if log is not None else []

    @property
    def done(self) -> bool:
        return self.left == 0

    @property
    def ready(self) -> bool:
        return True

    def step(self) -> None:
        self.left -= 1
        self.log.append("spare")


def test_spare_work_ends_although_the_stream_never_rests() -> None:
    inbox, log = Inbox(), []

    def deliver(results: list[GenerationResult], idle: bool) -> None:
        log.extend("result" for _ in results)
        inbox.deliver(results, idle)

    thread = EngineThread(lambda: engine(latency_steps=60, slots=1), deliver, inbox.deliveries.put)
    thread.submit(requests(count=1))
    spare = thread.run_spare(Counted(2, log))
    thread.start().result(LIMIT_S)
    spare.result(LIMIT_S)
    inbox.until(lambda: len(inbox.results) == 1)
    thread.stop(LIMIT_S)
    assert SPARE_EVERY * 2 < 60
    assert log == ["spare", "spare", "result"]


def test_an_error_of_spare_work_is_its_callers_and_the_engine_goes_on() -> None:
    class Broken(Counted):
        def step(self) -> None:
            raise ValueError("no")

    inbox = Inbox()
    thread = start(inbox)
    with pytest.raises(ValueError, match="no"):
        thread.run_spare(Broken(1)).result(LIMIT_S)
    thread.submit(requests(count=3))
    inbox.until(lambda: len(inbox.results) == 3)
    thread.stop(LIMIT_S)


def test_an_engine_that_breaks_is_reported_and_nobody_waits_for_ever() -> None:
    inbox = Inbox()
    thread = start(inbox)

    def poison(one: ScriptedEngine) -> None:
        one.submit(requests(count=1))
        one.step = broken  # type: ignore[method-assign]

    def broken() -> list[GenerationResult]:
        raise ArithmeticError("the device is gone")

    thread.call(poison)
    with pytest.raises(ArithmeticError, match="the device is gone"):
        inbox.until(lambda: False)
    thread.stop(LIMIT_S)
    with pytest.raises(RuntimeError, match="stopped"):
        thread.stats()


def test_an_engine_that_cannot_be_made_fails_the_start() -> None:
    def broken() -> ScriptedEngine:
        raise ValueError("no such model")

    inbox = Inbox()
    thread = EngineThread(broken, inbox.deliver, inbox.deliveries.put)
    waiting = thread.submit(requests(count=1))
    with pytest.raises(ValueError, match="no such model"):
        thread.start().result(LIMIT_S)
    with pytest.raises(CancelledError):
        waiting.result(LIMIT_S)


def test_busy_time_adds_up_over_bursts_and_rests_between_them() -> None:
    inbox = Inbox()
    thread = start(inbox)
    seen = [thread.busy_s()]
    for burst in range(3):
        thread.submit(requests(count=4, first=4 * burst))
        inbox.until(lambda wanted=4 * burst + 4: len(inbox.results) == wanted)
        thread.stats().result(LIMIT_S)
        seen.append(thread.busy_s())
    again = thread.busy_s()
    thread.stop(LIMIT_S)
    assert seen[0] == 0.0
    assert seen == sorted(set(seen))
    assert again == seen[-1]
