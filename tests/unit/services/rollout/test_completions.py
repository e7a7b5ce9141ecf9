"""What a replica's log makes of finished rollouts: ids, log-probs, versions and names, each with its own rollout."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.learner.probe_learner import learn

from streamrl.buffers.rows.records import AcceptedRows
from streamrl.buffers.segments.reader import SegmentReader
from streamrl.config import Config
from streamrl.config.schema.run import ModelConfig, QueueConfig
from streamrl.ids import group_id, rollout_id, rollout_seed
from streamrl.models.load import prepare_model_folder
from streamrl.services.rollout.completions import CompletionLog
from streamrl.services.rollout.rows import Finished, Issued
from streamrl.types import (
    FinishReason,
    GenerationResult,
    Ticket,
    Version,
    VersionSpan,
)

QUEUE = QueueConfig(durability="memory", commit_interval_ms=0.0, segment_bytes=2**20)
FINISHES = tuple(FinishReason)


def finished(number: int, sample: int, *, prompt: int, sampled: int) -> Finished:
    """A rollout whose every value tells which rollout it is of."""
    mark = 100 * number + 10 * sample
    group = group_id(f"p{number}", number % 3)
    ids = np.arange(mark, mark + sampled, dtype=np.int32)
    issued = Issued(
        ticket=Ticket(number, number, number % 3, sample % 2, 9),
        sample_index=sample,
        group_id=group,
        prompt_id=f"p{number}",
        prompt_ids=np.arange(5000 + mark, 5000 + mark + prompt, dtype=np.int32),
        payload=f'{{"n":{number}}}',
        started_ns=mark,
    )
    spans = tuple(VersionSpan(start, Version(1, mark + start)) for start in range(sampled) if start in (0, 2))
    result = GenerationResult(
        rollout_id(group, sample), ids, -(ids / 7).astype(np.float32), spans, FINISHES[mark % len(FINISHES)]
    )
    return Finished(issued, result, mark + 1)


def logged(folder: Path, rows: list[Finished], *, seed: int = 3) -> tuple[list[dict], AcceptedRows]:
    log = CompletionLog(folder, Config(queue=QUEUE, seed=seed), "rollout-4", 0)
    frame, accepted = asyncio.run(log.append(rows))
    log.close()
    return SegmentReader(folder).read(frame).to_pylist(), accepted


SHAPES = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 5)), min_size=1, max_size=6)


@given(shapes=SHAPES, random=st.randoms(use_true_random=False))
def test_invariant_5_each_row_holds_what_its_own_rollout_sampled(tmp_path_factory, shapes, random) -> None:
    rows = [finished(i // 2, i % 2, prompt=prompt, sampled=sampled) for i, (prompt, sampled) in enumerate(shapes)]
    random.shuffle(rows)
    written, accepted = logged(tmp_path_factory.mktemp("run"), rows)
    for place, (one, row) in enumerate(zip(rows, written, strict=True)):
        sampled = row["token_origin"].count(1)
        assert row["token_ids"] == [*one.issued.prompt_ids, *one.result.token_ids]
        assert row["token_origin"] == [0] * len(one.issued.prompt_ids) + [1] * sampled
        np.testing.assert_array_equal(row["rollout_logprobs"][len(one.issued.prompt_ids) :], one.result.logprobs)
        assert [span["step"] for span in row["version_spans"]] == [
            span.version.step for span in one.result.version_spans
        ]
        assert (row["rollout_id"], row["group_id"]) == (one.result.request_id, one.issued.group_id)
        assert (row["prompt_id"], row["payload"]) == (one.issued.prompt_id, one.issued.payload)
        assert (row["data_pass"], row["attempt"]) == (one.issued.ticket.data_pass, one.issued.ticket.attempt)
        assert (row["finish_reason"], row["replica"]) == (one.result.finish_reason.value, "rollout-4")
        assert (row["started_ns"], row["finished_ns"]) == (one.issued.started_ns, one.finished_ns)
        assert row["sampling"]["seed"] == rollout_seed(3, one.result.request_id)
        assert accepted.number[place] == one.issued.ticket.number
        assert row["sample_index"] == accepted.sample_index[place] == one.issued.sample_index
        assert accepted.sampled_tokens[place] == sampled


def test_a_rollouts_seed_is_of_its_run_and_of_its_id_and_not_of_its_attempt() -> None:
    ids = [rollout_id(group_id("p", data_pass), sample) for data_pass in (0, 1) for sample in (0, 1)]
    seeds = {rollout_seed(run, one) for run in (0, 1) for one in ids}
    assert len(seeds) == 8
    assert min(seeds) >= 0
    assert max(seeds) < 2**63
    assert rollout_seed(1, ids[0]) == rollout_seed(1, ids[0])


@pytest.mark.parametrize("frames", [2, 3])
def test_invariant_5_a_batch_out_of_several_frames_trains_the_same_rows(tmp_path, frames: int) -> None:
    prepare_model_folder(ModelConfig(preset="tiny-qwen3"), 0, tmp_path / "model")
    config = Config(model=ModelConfig(path=str(tmp_path / "model")), queue=QUEUE)
    whole = learn(config, tmp_path / "whole")
    assert learn(config, tmp_path / "parts", frames=frames).digest == whole.digest
