"""The thread that owns an engine: nothing is lost, versions change between steps, failures are heard."""

import queue
from collections.abc import Callable

import numpy as np
import pytest

from services.engine_thread import SPARE_EVERY, EngineThread
from streamrl.config.schema import ScriptedConfig
from streamrl.engines.scripted import ScriptedEngine
from streamrl.types import GenerationRequest, GenerationResult, SamplingParams, UpdateMode, Version

LIMIT_S = 20.0


def engine(*, latency_steps: int = 4, slots: int = 8) -> ScriptedEngine:
    return ScriptedEngine(ScriptedConfig(latency_steps=latency_steps), slots=slots, vocab_size=16, eos_token_id=2)


def requests(*, count: int, first: int = 0) -> list[GenerationRequest]:
    sampling = SamplingParams(max_new_tokens=64)
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


def test_a_drained_load_is_done_only_when_the_new_version_answers() -> None:
    inbox = Inbox()
    thread = start(inbox, latency_steps=32)
    thread.submit(requests(count=4)).result(LIMIT_S)
    thread.load({}, Version(0, 1), UpdateMode.DRAIN).result(LIMIT_S)
    versions = thread.call(lambda one: one.version).result(LIMIT_S)
    inbox.until(lambda: len(inbox.results) == 4)
    thread.stop(LIMIT_S)
    assert versions == Version(0, 1)
    assert {span.version for result in inbox.results for span in result.version_spans} == {Version(0, 0)}


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
    with pytest.raises(ValueError, match="no such model"):
        thread.start().result(LIMIT_S)


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
