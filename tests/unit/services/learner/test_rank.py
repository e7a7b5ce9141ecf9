"""A learner rank's shell: what is published, committed and saved, and in which order."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from support.learner.probe_learner import REWARDS, STEPS, finished, lease, open_run
from support.runs.probe_parts import Handle

from streamrl.buffers.rows.records import Lease
from streamrl.clock import SystemClock
from streamrl.config import Config
from streamrl.config.schema.learner import LearnerConfig, OptimizerConfig
from streamrl.config.schema.run import CheckpointConfig, ModelConfig, QueueConfig
from streamrl.errors import NonFiniteError
from streamrl.models.load import prepare_model_folder
from streamrl.observability.logs import release
from streamrl.observability.timeline import StepTimer
from streamrl.services.learner.actor import PHASES, LearnerRank
from streamrl.services.rollout.completions import CompletionLog
from streamrl.types import FrameRef, Version
from streamrl.weights.manifest import decode


def configured(tmp_path: Path, *, lr: float) -> Config:
    prepare_model_folder(ModelConfig(preset="tiny-qwen3"), 0, tmp_path / "model")
    return Config(
        model=ModelConfig(path=str(tmp_path / "model")),
        learner=LearnerConfig(steps=STEPS, optimizer=OptimizerConfig(lr=lr, warmup_steps=0)),
        checkpoint=CheckpointConfig(every=1),
        queue=QueueConfig(durability="memory", segment_bytes=2**20),
    )


async def written(config: Config, folder: Path) -> FrameRef:
    log = CompletionLog(folder, config, "rollout-0", 0)
    frame, _ = await log.append([finished(number, sample) for number in range(3) for sample in range(4)])
    log.close()
    return frame


async def steps(config: Config, folder: Path, count: int, wanted: tuple[bool, bool] = (False, False)) -> list[Any]:
    """What queue, store and controller hear in `count` steps, in order.

    wanted: whether the queue wants a checkpoint out of turn, as it says with a commit, and when it is asked again while
    none was committed.
    """
    open_run(config, folder)
    heard: list[Any] = []
    counts = dict.fromkeys(
        ("tokens_accepted", "tokens_ignored", "tokens_trained", "tokens_dropped", "rows_waiting", "rows_unscored"), 0
    )
    groups = {"groups_dropped": {}, "groups_ready": 0, "groups_leased": 0, "groups_trained": 3}
    prompts = {"prompts_quarantined": 0, "prompts_resting": 0, "components": {"right": (3.0, 4)}}
    books = {**counts, **groups, **prompts, "bytes_used": 0, "checkpoint_wanted": wanted[0]}
    frame = await written(config, folder)

    def leased(step: int) -> Lease:
        """The second row has no score."""
        whole = lease(step, [frame])
        rewards, valid = whole.rewards.copy(), whole.valid.copy()
        rewards[1], valid[1] = np.nan, False
        return replace(whole, rewards=rewards, valid=valid)

    def saved(step: int) -> bool:
        return (folder / f"checkpoints/step_{step:06d}/COMMITTED").exists()

    queue = Handle(
        lease=leased,
        commit=lambda step: heard.append(("commit", step)) or books,
        covered=lambda step, oldest: heard.append(("covered", step, saved(step))),
        status=lambda: {"checkpoint_wanted": wanted[1] and not any(one[0] == "covered" for one in heard)},
        pause=lambda: "",
    )
    store = Handle(publish=lambda data, pin: heard.append(("publish", Version(*decode(data).version))) or ([], {}))
    rank = LearnerRank(0, str(folder), msgspec.to_builtins(config), str(folder / "store"), queue, store)
    threads = torch.get_num_threads()
    try:
        await rank.build(Handle(report=heard.extend, published=lambda _: None))
        timer = StepTimer(SystemClock(), PHASES)
        for _ in range(count):
            assert await rank._step(timer)
        await rank._saver.finish()
        await rank._flushed()
    except NonFiniteError as error:
        heard.append(("refused", str(error), saved(1)))
    finally:
        await rank.close()
        await asyncio.to_thread(rank._compute.shutdown)
        rank._observer.close()
        release()
        torch.set_num_threads(threads)
    return heard


async def test_a_rank_says_what_it_is_at_from_its_start_to_its_wait_for_rows(tmp_path: Path) -> None:
    config, folder = configured(tmp_path, lr=1e-4), tmp_path / "run"
    open_run(config, folder)
    store = Handle(publish=lambda data, pin: ([], {}))
    rank = LearnerRank(0, str(folder), msgspec.to_builtins(config), str(folder / "store"), Handle(), store)
    threads = torch.get_num_threads()
    try:
        assert await rank.status() == {"step": 0, "doing": "starting", "entered": 0, "paused": ""}
        await rank.build(Handle(report=lambda _: None, published=lambda _: None))
        training = asyncio.ensure_future(rank.run())
        while (status := await rank.status())["doing"] != "wait":
            await asyncio.sleep(0)
            assert not training.done(), training.result()
        assert status == {"step": 0, "doing": "wait", "entered": 1, "paused": ""}
        training.cancel()
        await asyncio.gather(training, return_exceptions=True)
    finally:
        await rank.close()
        await asyncio.to_thread(rank._compute.shutdown)
        release()
        torch.set_num_threads(threads)


def test_a_step_is_committed_published_and_covered_only_when_its_checkpoint_is_there(tmp_path) -> None:
    heard = asyncio.run(steps(configured(tmp_path, lr=1e-4), tmp_path / "run", 2))
    trained = [one for one in heard if one[0] in ("commit", "publish")]
    assert trained == [("commit", 0), ("publish", Version(0, 1)), ("commit", 1), ("publish", Version(0, 2))]
    covered = [one for one in heard if one[0] == "covered"]
    assert covered == [("covered", 1, True), ("covered", 2, True)]
    for _, step, _ in covered:
        assert heard.index(("publish", Version(0, step))) < heard.index(("covered", step, True))


def test_a_commit_beside_the_steps_is_told_with_the_time_of_the_whole_and_the_step_has_the_stall(tmp_path) -> None:
    heard = asyncio.run(steps(configured(tmp_path, lr=1e-4), tmp_path / "run", 3))
    told = [one[1] for one in heard if one[0] == "checkpoint"]
    assert [one["step"] for one in told] == [1, 2, 3]
    lines = [one[1] for one in heard if one[0] == "step"]
    assert all("time/checkpoint" in line for line in lines)
    # A line tells of the newest commit before it, and the last commit is behind the last line.
    named = {line["checkpoint/step"]: line["checkpoint/seconds"] for line in lines if "checkpoint/step" in line}
    assert named == {one["step"]: one["seconds"] for one in told if one["step"] in named}
    assert set(named) >= {1, 2}


@pytest.mark.parametrize(("wanted", "saved"), [((True, True), [1]), ((True, False), []), ((False, True), [])])
def test_a_checkpoint_is_taken_out_of_turn_when_the_queue_wants_one_and_still_does(
    wanted: tuple[bool, bool], saved: list[int], tmp_path
) -> None:
    config = configured(tmp_path, lr=1e-4)
    config = msgspec.structs.replace(config, checkpoint=CheckpointConfig(every=1000))
    # The second call of `_step` saves, or trains.
    heard = asyncio.run(steps(config, tmp_path / "run", 2, wanted))
    assert [one for one in heard if one[0] == "covered"] == [("covered", step, True) for step in saved]
    assert [one for one in heard if one[0] == "commit"] == [("commit", 0), ("commit", 1)][: 2 - len(saved)]


def test_no_checkpoint_is_taken_out_of_turn_when_the_one_under_way_is_enough(tmp_path) -> None:
    heard = asyncio.run(steps(configured(tmp_path, lr=1e-4), tmp_path / "run", 2, (True, True)))
    assert [one for one in heard if one[0] == "commit"] == [("commit", 0), ("commit", 1)]


def test_invariant_11_the_times_in_a_steps_metrics_add_up_to_it(tmp_path) -> None:
    heard = asyncio.run(steps(configured(tmp_path, lr=1e-4), tmp_path / "run", 2))
    facts = [one[1] for one in heard if one[0] == "step"]
    assert [one["step"] for one in facts] == [1, 2]
    for one in facts:
        parts = sum(value for key, value in one.items() if key.startswith("time/") and key != "time/step")
        assert parts == pytest.approx(one["time/step"], abs=1e-8)


def test_invariant_8_a_failed_score_is_counted_in_the_metrics_and_is_in_no_mean(tmp_path) -> None:
    heard = asyncio.run(steps(configured(tmp_path, lr=1e-4), tmp_path / "run", 1))
    (facts,) = (one[1] for one in heard if one[0] == "step")
    scored = np.delete(REWARDS, 1)
    assert facts["reward/mean"] == pytest.approx(scored.mean())
    assert facts["reward/failed"] == 1
    assert facts["reward/right/mean"] == 0.75


def test_invariant_12_weights_that_were_refused_are_neither_published_nor_saved(tmp_path) -> None:
    heard = asyncio.run(steps(configured(tmp_path, lr=1e39), tmp_path / "run", 1))
    assert [one[0] for one in heard] == ["commit", "refused"]
    assert "NaN or infinite numbers: it is not published" in heard[-1][1]
    assert heard[-1][2] is False
