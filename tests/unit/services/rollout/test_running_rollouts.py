"""Which request a result belongs to, when a group is issued again to the replica that still runs it."""

import numpy as np
import pytest

from streamrl.config.schema.rollout import ScriptedConfig
from streamrl.engines.base import Engine
from streamrl.engines.scripted import ScriptedEngine
from streamrl.services.rollout.rows import Issued, RunningRollouts
from streamrl.types import (
    FinishReason,
    GenerationRequest,
    GenerationResult,
    PartialTokens,
    SamplingParams,
    Ticket,
    Version,
    VersionSpan,
)

PROMPT = np.array([1, 3], np.int32)
NAME = "g.0/0"


def issued(attempt: int) -> Issued:
    return Issued(Ticket(0, 0, 0, attempt, 7 + attempt), 0, "g.0", "p", PROMPT, "{}", 0)


def request() -> GenerationRequest:
    return GenerationRequest(NAME, PROMPT, 5, SamplingParams(max_new_tokens=6), (2,))


def piece() -> PartialTokens:
    return PartialTokens(NAME, 0, np.array([4], np.int32), np.zeros(1, np.float32), (VersionSpan(0, Version(0, 1)),))


def of_the_stream(running: RunningRollouts, results: list[GenerationResult]) -> list[tuple[int, FinishReason]]:
    """(attempt, finish reason) of the results that somebody waits for."""
    of = [(running.ended(result.request_id), result.finish_reason) for result in results]
    return [(one.ticket.attempt, reason) for one, reason in of if one is not None]


def to_the_end(engine: Engine) -> list[GenerationResult]:
    results = []
    while engine.has_work:
        results += engine.step()
    return results


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_what_comes_of_an_older_request_is_nobodys_and_the_newer_one_is_whole(steps: int) -> None:
    engine = ScriptedEngine(ScriptedConfig(latency_steps=5), slots=4, vocab_size=16, eos_token_id=2)
    running, results = RunningRollouts(), []
    assert not running.issue(NAME, issued(0))
    engine.submit([request()])
    for _ in range(steps):
        results += engine.step()
    assert running.issue(NAME, issued(1))
    engine.abort([NAME])
    engine.submit([request()])
    results += to_the_end(engine)
    assert [result.finish_reason for result in results].count(FinishReason.ABORT) == 1
    ((attempt, reason),) = of_the_stream(running, results)
    assert attempt == 1
    assert reason != FinishReason.ABORT
    assert len(running) == 0


def test_a_result_that_was_under_way_when_its_group_came_again_is_the_older_requests() -> None:
    engine = ScriptedEngine(ScriptedConfig(latency_steps=2), slots=4, vocab_size=16, eos_token_id=2)
    running = RunningRollouts()
    running.issue(NAME, issued(0))
    engine.submit([request()])
    results = to_the_end(engine)
    running.issue(NAME, issued(1))
    engine.abort([NAME])
    engine.submit([request()])
    results += to_the_end(engine)
    assert [attempt for attempt, _ in of_the_stream(running, results)] == [1]


def test_pieces_count_from_the_moment_at_which_the_older_request_has_ended() -> None:
    running = RunningRollouts()
    running.issue(NAME, issued(0))
    assert len(running.of_newest([piece()])) == 1
    running.issue(NAME, issued(1))
    running.issue(NAME, issued(2))
    assert running.ended(NAME) is None
    assert running.of_newest([piece()]) == []
    assert running.ended(NAME) is None
    assert len(running.of_newest([piece()])) == 1
    newest = running.ended(NAME)
    assert newest is not None
    assert newest.ticket.attempt == 2
    assert running.ended(NAME) is None
