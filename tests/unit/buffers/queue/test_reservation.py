"""The bytes that admission sets aside for a rollout are never less than what the rollout takes in the log."""

import asyncio
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamrl.buffers.index.replay_index import ReplayIndex
from streamrl.buffers.rows.arrow import scores_batch
from streamrl.buffers.rows.schema import SCORES
from streamrl.buffers.segments.writer import SegmentWriter
from streamrl.clock import SystemClock
from streamrl.config import Config
from streamrl.config.estimates import sizes as limits
from streamrl.config.schema.learner import LearnerConfig
from streamrl.config.schema.rollout import RolloutConfig, SamplingConfig
from streamrl.config.schema.run import QueueConfig
from streamrl.ids import group_id
from streamrl.rewards.base import REASON_LENGTH
from streamrl.services.queue.actor import queue_settings
from streamrl.services.rollout.completions import CompletionLog
from streamrl.services.rollout.rows import Finished, Issued
from streamrl.tasks.base import Prompt
from streamrl.tasks.order import PromptOrder
from streamrl.tasks.prompts import longest_text
from streamrl.types import FinishReason, FrameRef, GenerationResult, Score, Ticket, Version, VersionSpan


class OnePrompt:
    """A task of one prompt, whose payload is as long as one likes."""

    name, num_train, num_held_out = "one", 1, 0

    def __init__(self, payload: str) -> None:
        self._prompt = Prompt("0123456789abcdef", "text", payload)

    def train(self, index: int) -> Prompt:
        return self._prompt

    def held_out(self, index: int) -> Prompt:
        raise IndexError(index)

    def fingerprint(self) -> str:
        return "one"


def config(*, max_new_tokens: int = 16, max_staleness: int = 2, segment_bytes: int = 2**20) -> Config:
    return Config(
        rollout=RolloutConfig(sampling=SamplingConfig(max_new_tokens=max_new_tokens)),
        learner=LearnerConfig(max_staleness=max_staleness),
        queue=QueueConfig(durability="memory", commit_interval_ms=0.0, segment_bytes=segment_bytes),
    )


def finished(task: OnePrompt, *, prompt_tokens: int, sampled: int, versions: int, number: int = 0) -> Finished:
    prompt = task.train(0)
    group = group_id(prompt.prompt_id, 12345)
    ids = np.ones(prompt_tokens, np.int32)
    issued = Issued(Ticket(number, 0, 12345, 3, 9), 7, group, prompt.prompt_id, ids, prompt.payload, 1)
    spans = tuple(VersionSpan(step, Version(1, step)) for step in range(min(versions, sampled)))
    tokens = np.ones(sampled, np.int32)
    logprobs = np.zeros(sampled, np.float32)
    return Finished(issued, GenerationResult(f"{group}/7", tokens, logprobs, spans, FinishReason.LENGTH), 2)


def written(folder: Path, given_config: Config, rows: list[Finished]) -> FrameRef:
    """The frame that a replica makes of `rows`."""
    log = CompletionLog(folder, given_config, "rollout-1000", 1000)
    try:
        frame, _ = asyncio.run(log.append(rows))
    finally:
        log.close()
    return frame


@settings(max_examples=30, deadline=None)
@example(prompt_tokens=1, sampled=300, max_staleness=250, payload="", rows=1)
@example(prompt_tokens=1, sampled=1, max_staleness=0, payload="x" * 4000, rows=1)
@given(
    prompt_tokens=st.integers(1, 300),
    sampled=st.integers(1, 600),
    max_staleness=st.integers(0, 40),
    payload=st.text(max_size=400),
    rows=st.integers(1, 5),
)
def test_invariant_9_no_frame_takes_more_than_was_reserved_for_its_rows(
    tmp_path_factory, prompt_tokens, sampled, max_staleness, payload, rows
):
    task = OnePrompt(payload)
    given_config = config(max_new_tokens=sampled, max_staleness=max_staleness)
    reserved = queue_settings(given_config, task, prompt_tokens).rollout_bytes
    many = [
        finished(task, prompt_tokens=prompt_tokens, sampled=sampled, versions=max_staleness + 1) for _ in range(rows)
    ]
    frame = written(tmp_path_factory.mktemp("run"), given_config, many)
    assert frame.length <= rows * reserved


def test_a_row_alone_in_its_frame_would_pass_an_estimate_without_the_frames_own_bytes(tmp_path):
    task = OnePrompt("{}")
    frame = written(tmp_path, config(), [finished(task, prompt_tokens=7, sampled=16, versions=1)])
    assert limits.row_bytes(7 + 16) + longest_text(task) < frame.length


def test_invariant_9_bytes_held_never_pass_bytes_reserved_when_every_row_comes_alone(tmp_path):
    task = OnePrompt('{"answer":"1"}')
    given_config = config()
    queue = queue_settings(given_config, task, 7)
    index = ReplayIndex(queue, PromptOrder(1, 0), SystemClock())
    index.issue("rollout-0", 0, 1)
    log = CompletionLog(tmp_path, given_config, "rollout-0", 0)
    before = index.counts().bytes_used
    for sample in range(queue.group_size):
        one = finished(task, prompt_tokens=7, sampled=16, versions=1)
        issued = msgspec.structs.replace(one.issued.ticket, attempt=0, data_pass=0)
        frame, rows = asyncio.run(log.append([_renumbered(one, issued, sample)]))
        index.accept(frame, rows.packed())
        assert index.counts().bytes_used <= before
        before = index.counts().bytes_used
    log.close()
    assert index.counts().bytes_reserved == 0


def _renumbered(one: Finished, ticket: Ticket, sample_index: int) -> Finished:
    issued = Issued(
        ticket, sample_index, one.issued.group_id, one.issued.prompt_id, one.issued.prompt_ids, one.issued.payload, 1
    )
    return Finished(issued, one.result, one.finished_ns)


@pytest.mark.parametrize("segment_bytes", [2**14, 2**16, 2**20])
def test_a_segment_holds_as_many_rows_as_a_replica_puts_into_a_frame(tmp_path, segment_bytes):
    task = OnePrompt('{"answer":"1"}')
    given_config = config(max_new_tokens=200, segment_bytes=segment_bytes)
    rows = limits.frame_rows(given_config, limits.worst_row_bytes(given_config, 50, longest_text(task)))
    frame = written(tmp_path, given_config, [finished(task, prompt_tokens=50, sampled=200, versions=3)] * rows)
    assert frame.num_rows == rows > 0


def test_a_segment_that_passes_the_check_holds_the_scores_of_a_hand_out_that_failed_at_length(tmp_path):
    rows = 512
    scores = [Score.failed("x" * REASON_LENGTH)] * rows
    batch = scores_batch(
        ["0123456789abcdef.12345/12"] * rows, np.zeros(rows, np.int32), scores, scorer="r", scored_ns=1
    )
    size = limits.FRAME_BYTES + rows * limits.SCORE_BYTES
    writer = SegmentWriter(tmp_path, "scores", "r", 0, SCORES, size, "memory", 0.0)
    assert writer.append(batch).result().num_rows == rows
    writer.close()
