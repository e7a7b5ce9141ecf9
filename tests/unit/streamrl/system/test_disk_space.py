"""A full disk is a pause: who waits, who says so, what is decided before it is full, and what is kept meanwhile."""

import asyncio
import threading
from pathlib import Path

import msgspec
import pytest
from support.learner.probe_learner import open_run
from support.runs.probe_parts import Handle

from streamrl.buffers.queue.replay_queue import ReplayQueue
from streamrl.buffers.rows.records import QueueSettings
from streamrl.clock import SystemClock, VirtualClock
from streamrl.config.schema.run import Config, ModelConfig, QueueConfig
from streamrl.errors import ComponentError, DeadlineError, ResourceError
from streamrl.observability.logs import release
from streamrl.observability.metrics import MetricsWriter, read_metrics
from streamrl.observability.timeline import TraceWriter
from streamrl.services.actors.deadline import within_or_paused
from streamrl.services.controller.actor import Controller
from streamrl.services.controller.evaluator import Evaluator
from streamrl.services.controller.health.disk_watch import DiskWatch
from streamrl.services.controller.replica_scaler import ReplicaScaler
from streamrl.services.controller.replicas import ReplicaPool
from streamrl.services.controller.reward_keeper import RewardKeeper
from streamrl.system.append_file import AppendFile
from streamrl.system.disk import free_bytes
from streamrl.system.disk_space import DiskSpace, LowDisk
from streamrl.types import Version

MB = 10**6
FULL_DEVICE = Path("/dev/full")
"""Takes nothing: every write to it is a full disk."""


def test_who_waits_for_room_says_for_what_and_goes_on_when_there_is_some() -> None:
    room, tries = DiskSpace(), []

    def attempt() -> str:
        tries.append(room.pause)
        if len(tries) < 3:
            raise ResourceError(f"no room, try {len(tries)}")
        return "written"

    assert room.wait_for(attempt) == "written"
    assert tries == ["", "no room, try 1", "no room, try 2"]
    assert room.pause == ""


def test_any_other_failure_is_not_waited_out() -> None:
    def attempt() -> None:
        raise ComponentError("the disk is broken")

    with pytest.raises(ComponentError, match="broken"):
        DiskSpace().wait_for(attempt)


def test_closing_ends_a_wait_after_one_more_try() -> None:
    room, tried = DiskSpace(), threading.Event()
    errors = []

    def attempt() -> None:
        tried.set()
        raise ResourceError("no room")

    def wait() -> None:
        try:
            room.wait_for(attempt)
        except ResourceError as error:
            errors.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert tried.wait(30)
    room.close()
    waiter.join(30)
    assert [str(error) for error in errors] == ["no room"]


def test_a_low_disk_is_told_once_and_is_well_again_a_little_above() -> None:
    disk = LowDisk(80 * MB, VirtualClock())
    assert disk.observe(80 * MB) == ""
    assert not disk.low
    said = disk.observe(79 * MB)
    assert "79 MB free, needs 90 MB. Paused" in said
    assert disk.low
    assert disk.observe(10 * MB) == ""
    assert disk.observe(85 * MB) == ""
    assert disk.low
    assert disk.observe(90 * MB) == "the disk has room again, 90 MB free: going on"
    assert not disk.low
    assert disk.observe(85 * MB) == ""


def test_a_part_that_waits_makes_a_disk_low_whatever_is_free() -> None:
    disk = LowDisk(0, VirtualClock())
    assert disk.observe(0) == ""
    assert "no room for 5 bytes. Paused" in disk.observe(500 * MB, "no room for 5 bytes")
    assert disk.low
    assert "going on" in disk.observe(500 * MB)


def test_a_disk_is_well_for_as_long_as_it_was_not_seen_low() -> None:
    clock = VirtualClock()
    disk = LowDisk(80 * MB, clock)
    assert disk.well_for_s() == float("inf")
    disk.observe(0)
    clock.advance(5.0)
    disk.observe(1)
    assert disk.well_for_s() == 0.0
    disk.observe(100 * MB)
    clock.advance(7.0)
    assert disk.well_for_s() == 7.0


async def test_the_watch_has_the_queue_hold_and_go_on_and_says_both(tmp_path: Path) -> None:
    held: list[bool] = []
    said: list[str] = []
    pause = "no room for 5 bytes"
    queue = Handle(pause=lambda: pause, hold=held.append)
    config = Config(model=ModelConfig(preset="tiny-qwen3"), queue=QueueConfig(min_free_bytes=0))
    watch = DiskWatch(tmp_path, config, queue, said.append)
    await watch.check([""])
    await watch.check([""])
    assert held == [True]
    assert watch.well_for_s() < 60
    pause = ""
    await watch.check(["", "no room in the segment"])
    assert held == [True]
    await watch.check(["", ""])
    assert held == [True, False]
    assert ["Paused" in text for text in said] == [True, False]


@pytest.mark.parametrize("full", [True, False])
async def test_no_group_is_overdue_while_the_disk_is_full(full: bool, tmp_path: Path) -> None:
    config = Config(model=ModelConfig(preset="tiny-qwen3"), queue=QueueConfig(min_free_bytes=2**62 if full else 0))
    open_run(config, tmp_path)
    controller = Controller(str(tmp_path), msgspec.to_builtins(config))
    late = {"": "group 3 has not finished"}
    controller._queue = Handle(pause=lambda: "", hold=lambda _: None, overdue=lambda _: late)
    controller._store = Handle(late=dict)
    stage = Handle(status=lambda: {"paused": "", "not_started": ""})
    controller._reward = RewardKeeper(1, lambda: stage, controller._queue, controller._supervision)
    controller._disk = DiskWatch(tmp_path, config, controller._queue, controller._tell)
    seat, book = controller._reward.seat, controller._book
    controller._evaluator = Evaluator(config, controller._store, seat, book, controller._finish_at, Handle())
    none = ReplicaPool(
        0, Handle, controller._queue, controller._store, controller._nodes, controller._supervision, (), 1.0
    )
    controller._pool = none
    controller._scaler = ReplicaScaler(config, SystemClock(), none, controller._queue, Handle(), book.report, False)
    controller._opened.set()
    watch = asyncio.ensure_future(controller._watch())
    looked = asyncio.ensure_future(_heartbeat(controller))
    await asyncio.wait({watch, looked}, return_when=asyncio.FIRST_COMPLETED)
    assert watch.done() is not full
    if not full:
        with pytest.raises(DeadlineError, match=r"the queue: group 3 .*deadlines\.rollout_s is 300"):
            watch.result()
    for task in (watch, looked):
        task.cancel()
    await asyncio.gather(watch, looked, return_exceptions=True)
    controller._observer.close()
    controller._book.close()
    release()


async def _heartbeat(controller: Controller) -> None:
    """Until the controller has looked at everything once."""
    number, kinds = 0, [""]
    while "replicas" not in kinds:
        number, events = await controller.next_events(number)
        kinds = [event["kind"] for event in events]


async def test_a_queue_that_is_held_gives_out_no_group_until_it_is_let_go(tmp_path: Path) -> None:
    class Order:
        def at(self, n: int, /) -> tuple[int, int]:
            return 0, n

    settings = QueueSettings(group_size=1, groups_per_step=2, max_staleness=1, byte_budget=10**6, rollout_bytes=1000)
    queue = ReplayQueue.open(tmp_path, settings, Order(), SystemClock())
    queue.hold(True)
    taking = asyncio.ensure_future(queue.take("r", 0, Version(0, 0), 4))
    for _ in range(20):
        await asyncio.sleep(0)
    assert queue.counts().groups_issued == 0
    queue.hold(False)
    assert [ticket.number for ticket in await taking] == [0, 1, 2, 3]
    queue.close()


async def test_invariant_7_a_deadline_does_not_run_while_the_disk_is_full() -> None:
    pauses = iter(["the disk is full", "the disk is full"])
    done: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def pause() -> str:
        text = next(pauses, "")
        if not text:
            done.set_result("accepted")
            return "the disk is full"
        return text

    assert await within_or_paused(0.01, done, who="rollout-0", what="a receipt", pause=pause) == "accepted"


async def test_invariant_7_a_wait_is_over_when_nothing_is_paused_or_nobody_answers() -> None:
    async def nothing() -> str:
        return ""

    async def silent() -> str:
        await asyncio.Event().wait()
        return "never"

    for pause in (nothing, silent):
        waiting = asyncio.get_running_loop().create_future()
        with pytest.raises(DeadlineError, match=r"rollout-0: a receipt took longer than 0\.01 s"):
            await within_or_paused(0.01, waiting, who="rollout-0", what="a receipt", pause=pause)
        assert waiting.cancelled()


async def test_an_error_within_its_deadline_is_its_own() -> None:
    async def fails() -> None:
        raise ComponentError("the ledger is broken")

    async def never() -> str:
        raise AssertionError("asked in time")

    with pytest.raises(ComponentError, match="the ledger is broken"):
        await within_or_paused(5.0, fails(), who="rollout-0", what="a receipt", pause=never)


def test_lines_that_find_no_room_are_kept_and_go_before_the_next(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    file = AppendFile(path)
    file.append(b"1\n")
    real = path.rename(tmp_path / "real")
    path.symlink_to(FULL_DEVICE)
    file.append(b"2\n")
    file.append(b"3\n")
    assert file.num_kept == 4
    path.unlink()
    real.rename(path)
    file.append(b"4\n")
    assert path.read_bytes() == b"1\n2\n3\n4\n"
    assert file.num_kept == 0


def test_a_file_that_cannot_be_appended_to_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ComponentError, match="Is a directory"):
        AppendFile(tmp_path).append(b"1\n")


def test_metrics_of_a_full_disk_are_written_when_there_is_room(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsWriter(path) as metrics:
        metrics.write({"step": 1})
        real = path.rename(tmp_path / "real")
        path.symlink_to(FULL_DEVICE)
        metrics.write({"step": 2})
        path.unlink()
        real.rename(path)
        metrics.write({"step": 3})
    assert [line["step"] for line in read_metrics(path)] == [1, 2, 3]


def test_spans_of_a_full_disk_are_dropped_and_counted_and_disturb_nobody(tmp_path: Path) -> None:
    trace = TraceWriter(tmp_path / "part.jsonl", "part")
    real = trace._file
    with FULL_DEVICE.open("wb", buffering=0) as full:
        trace._file = full
        for _ in range(3):
            trace.add("lost", 1, 2)
            trace.flush()
        trace._file = real
    trace.add("kept", 1, 2)
    trace.close()
    lines = [line for line in (tmp_path / "part.jsonl").read_bytes().splitlines() if line]
    assert trace.dropped == 3
    assert len(lines) == 3
    assert b"kept" in lines[1]
    assert b"trace full: 3 spans dropped" in lines[2]


def test_free_bytes_are_those_of_an_ordinary_user(tmp_path: Path) -> None:
    assert 0 < free_bytes(tmp_path) <= 2**60
    with pytest.raises(ComponentError, match="cannot be read"):
        free_bytes(tmp_path / "none")
