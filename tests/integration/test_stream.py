"""The whole stream on a real Ray with the torch engine: what a run promises, read from what it wrote."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from streamrl.buffers.recovery.recorded import recorded_leases
from streamrl.buffers.segments.places import COMPLETIONS_DIR
from streamrl.buffers.segments.reader import SegmentReader
from streamrl.config import Config, load
from streamrl.learner.checkpoint.checkpoint import verify
from streamrl.services.commands.replay import replay
from streamrl.services.queue.actor import queue_settings
from streamrl.services.run.folder import RunFolder
from streamrl.tasks.order import PromptOrder
from streamrl.tasks.resolve import resolve_task

pytestmark = pytest.mark.ray


def recorded(folder: Path) -> tuple[Config, list]:
    config = load(folder / "config.toml")
    task = resolve_task(config.task.name, config.task.held_out)
    settings = queue_settings(config, task, longest_prompt=7)
    return config, list(recorded_leases(folder, settings, PromptOrder(task.num_train, config.seed)))


def completions(folder: Path) -> list[dict]:
    reader = SegmentReader(folder)
    paths = sorted((folder / COMPLETIONS_DIR).glob("*.arrow"))
    frames = [frame for path in paths for frame in reader.scan(str(path.relative_to(folder)))]
    return [row for frame in frames for row in reader.read(frame).to_pylist()]


def test_a_run_learns_publishes_and_leaves_what_it_promises(streamed) -> None:
    summary = streamed.summary()
    rows = streamed.metrics()
    assert summary["steps"] == len(rows) == 40
    assert summary["versions_published"] == 40
    assert summary["discards"] == 0
    first, last = (np.mean([row["reward/mean"] for row in part]) for part in (rows[:8], rows[-8:]))
    assert last > first + 0.1
    assert AutoModelForCausalLM.from_pretrained(summary["export"]) is not None
    assert Path(summary["curve"]).read_bytes().startswith(b"\x89PNG")
    spans = json.loads((streamed.folder / "trace.json").read_text())["traceEvents"]
    assert {"generate", "score", "forward_backward", "update"} <= {span["name"] for span in spans}


def test_invariant_3_no_row_is_trained_beyond_the_staleness_bound(streamed) -> None:
    _, leases = recorded(streamed.folder)
    staleness = [lease.step - lease.oldest_step for lease in leases]
    assert max(one.max() for one in staleness) <= 2
    assert min(one.min() for one in staleness) >= 0
    assert [int(one.max()) for one in staleness] == [row["staleness/max"] for row in streamed.metrics()]


def test_invariant_5_ids_sampled_are_ids_trained_with_their_logprobs_and_versions(streamed) -> None:
    """A run that is trained again on the rows of its log is the same run, to the bit: nothing else was trained."""
    steps = list(replay(RunFolder.open(streamed.folder)))
    assert len(steps) == 40
    assert all(step.same and step.difference == 0.0 for step in steps)


def test_invariant_5_logged_logprobs_are_the_models_own(streamed) -> None:
    """Rows of the first version: log-probs by transformers, from the ids alone."""
    model = AutoModelForCausalLM.from_pretrained(streamed.folder / "model")
    assert_logprobs_are_of(model, step=0, folder=streamed.folder)


def test_invariant_6_logprobs_under_a_later_version_are_those_of_its_weights(streamed) -> None:
    """The weights of step 36 are in a checkpoint: whoever answered under that version computed with them."""
    model = AutoModelForCausalLM.from_pretrained(streamed.folder / "model")
    checkpoint = verify(streamed.folder / "checkpoints" / "step_000036")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(checkpoint.tensor(f"model/{name}"))
    assert_logprobs_are_of(model, step=36, folder=streamed.folder)


def assert_logprobs_are_of(model: PreTrainedModel, *, step: int, folder: Path) -> None:
    """Of 16 rows that were begun under one version, each logged log-prob up to the next version, which may come before
    the end of any of them."""
    rows = [row for row in completions(folder) if row["version_spans"][0]["step"] == step]
    assert len(rows) >= 16
    for row in rows[:16]:
        end = row["version_spans"][1]["start"] if len(row["version_spans"]) > 1 else len(row["token_ids"])
        ids = torch.tensor([row["token_ids"][:end]])
        with torch.no_grad():
            logprobs = model(ids).logits.log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None])[:, 0]
        sampled = torch.tensor(row["token_origin"][1:end]) == 1
        assert sampled.any()
        assert torch.allclose(logprobs[sampled], torch.tensor(row["rollout_logprobs"][1:end])[sampled], atol=1e-5)


def test_invariant_6_spans_name_published_versions_and_never_decrease(streamed) -> None:
    for row in completions(streamed.folder):
        spans = row["version_spans"]
        versions = [(span["incarnation"], span["step"]) for span in spans]
        assert versions == sorted(set(versions))
        assert spans[0]["start"] == row["token_origin"].index(1)
        assert all(0 <= step <= 40 for _, step in versions)


def test_invariant_11_the_books_close(streamed) -> None:
    config, leases = recorded(streamed.folder)
    groups = [number for lease in leases for number in np.unique(lease.group)]
    assert len(groups) == len(set(groups)) == config.total_groups
    rows = streamed.metrics()
    trained = sum(int(lease.sampled_tokens.sum()) for lease in leases)
    logged = sum(row["token_origin"].count(1) for row in completions(streamed.folder))
    assert rows[-1]["tokens/trained"] == trained
    assert rows[-1]["tokens/generated"] == logged == trained + rows[-1]["tokens/dropped"]
    for row in rows:
        parts = sum(value for key, value in row.items() if key.startswith("time/") and key != "time/step")
        assert parts == pytest.approx(row["time/step"], abs=1e-9)


def test_a_replay_on_two_ranks_agrees_to_1e_5(streamed) -> None:
    steps = list(replay(RunFolder.open(streamed.folder), steps=20, num_workers=2))
    assert len(steps) == 20
    assert max(step.difference for step in steps) <= 1e-5


def test_a_finished_run_prints_its_summary_again_and_refuses_another_configuration(
    streamed, streamrl: Callable
) -> None:
    again = streamrl("up", "base.toml", "--name", "streamed", "--learner.steps", "40")
    assert (again.code, "is finished" in again.output) == (0, True)
    changed = streamrl("up", "base.toml", "--name", "streamed", "--learner.steps", "41")
    assert (changed.code, "learner.steps" in changed.output) == (2, True)
    assert "Traceback" not in changed.output
