"""An engine that waits for a server, in the thread that owns it: nobody waits for the server but the step itself."""

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from support.engines.fake_server import token
from support.engines.fake_vllm import FakeVllm, fake_engine

from streamrl.errors import ProcessDiedError
from streamrl.services.rollout.engine_thread import EngineThread
from streamrl.types import GenerationRequest, SamplingParams, UpdateMode, Version, VersionSpan

LIMIT_S = 20.0
OLD, NEW = Version(0, 0), Version(0, 1)


class Running:
    """A started thread over a fake server, and what it tells."""

    def __init__(self, fake: FakeVllm, engine: Any) -> None:
        self.fake = fake
        self.delivered: queue.Queue[Any] = queue.Queue()
        self.deaths: queue.Queue[BaseException] = queue.Queue()
        self.pieces: queue.Queue[Any] = queue.Queue()
        self.thread = EngineThread(
            lambda: engine,
            lambda results, idle: self.delivered.put((results, idle)),
            self.deaths.put,
            report=self.pieces.put,
            report_every=4,
        )
        self.thread.start().result(LIMIT_S)

    def submit(self, *names: str) -> None:
        sampling, prompt = SamplingParams(max_new_tokens=8), np.array([1, 4, 5], np.int32)
        requests = [GenerationRequest(name, prompt, 7, sampling, ()) for name in names]
        self.thread.submit(requests).result(LIMIT_S)
        self.fake.wait_for(len(names))


@contextmanager
def started() -> Iterator[Running]:
    fake = FakeVllm()
    with fake_engine(fake) as engine:
        running = Running(fake, engine)
        try:
            yield running
        finally:
            running.thread.stop(LIMIT_S)


@pytest.fixture
def running() -> Iterator[Running]:
    with started() as running:
        yield running


class Counted:
    """Spare work of three steps."""

    def __init__(self) -> None:
        self.steps = 0

    @property
    def done(self) -> bool:
        return self.steps == 3

    @property
    def ready(self) -> bool:
        return True

    def step(self) -> None:
        self.steps += 1


def test_an_order_does_not_wait_for_the_server(running: Running) -> None:
    running.submit("one")
    assert running.thread.stats().result(LIMIT_S).running == 1
    running.thread.abort(["one"]).result(LIMIT_S)
    results, idle = running.delivered.get(timeout=LIMIT_S)
    assert [result.request_id for result in results] == ["one"]
    assert idle


def test_a_version_is_taken_up_while_a_request_waits_for_its_tokens(running: Running) -> None:
    running.submit("one")
    running.thread.load({"model.norm.weight": torch.zeros(2)}, NEW, UpdateMode.KEEP).result(LIMIT_S)
    running.fake.wait_for(2)  # sent again: the server had not begun it
    running.fake.sample(8)
    ((result,), _) = running.delivered.get(timeout=LIMIT_S)
    assert result.version_spans == (VersionSpan(0, NEW),)


def test_a_drained_version_is_told_when_the_last_request_is_done(running: Running) -> None:
    running.submit("one")
    loaded = running.thread.load({"model.norm.weight": torch.zeros(2)}, NEW, UpdateMode.DRAIN)
    assert running.thread.stats().result(LIMIT_S).version == OLD
    assert not loaded.done()
    running.fake.sample(8)
    loaded.result(LIMIT_S)


def test_spare_work_is_done_while_the_server_says_nothing(running: Running) -> None:
    running.submit("one")
    work = Counted()
    running.thread.run_spare(work).result(LIMIT_S)
    assert work.steps == 3


def test_partial_tokens_are_told_as_soon_as_there_are_enough_and_the_rest_at_the_end(running: Running) -> None:
    running.submit("one")
    running.fake.sample(5)
    (piece,) = running.pieces.get(timeout=LIMIT_S)
    assert piece.token_ids.tolist() == [token(i) for i in range(5)]
    running.fake.sample(2)
    while running.thread.stats().result(LIMIT_S).generated_tokens < 7:
        pass
    running.thread.stop(LIMIT_S)
    (rest,) = running.pieces.get(timeout=LIMIT_S)
    assert (rest.start, rest.token_ids.tolist()) == (5, [token(5), token(6)])


def test_the_death_of_the_server_is_heard(running: Running) -> None:
    running.submit("one")
    running.fake.say("one", None)
    assert isinstance(running.deaths.get(timeout=LIMIT_S), ProcessDiedError)


class Endless(Counted):
    @property
    def done(self) -> bool:
        return False


def test_who_waits_for_the_engine_when_its_server_dies_hears_of_it(running: Running) -> None:
    evaluation = running.thread.run_spare(Endless())
    running.submit("one")
    loaded = running.thread.load({"model.norm.weight": torch.zeros(2)}, NEW, UpdateMode.DRAIN)
    running.thread.stats().result(LIMIT_S)
    running.fake.say("one", None)
    for future in (evaluation, loaded):
        with pytest.raises(ProcessDiedError, match="the connection broke"):
            future.result(LIMIT_S)
