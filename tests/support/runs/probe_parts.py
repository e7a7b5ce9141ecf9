"""What a configuration makes of the parts of a run: the real classes, without Ray around them.

A part that talks to another one gets a `Handle` in its place, as Ray would give it.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from support.learner.probe_learner import finished, open_run
from support.queue.small_index import accept, score

from streamrl.buffers.index.replay_index import ReplayIndex
from streamrl.clock import SystemClock, VirtualClock
from streamrl.config import Config
from streamrl.engines.build import build_engine
from streamrl.errors import StreamRLError
from streamrl.evaluation import Evaluation
from streamrl.models.load import load_model
from streamrl.models.tokenizer import load_tokenizer
from streamrl.observability.logs import release
from streamrl.observability.stall_detector import Parts as Says
from streamrl.observability.trackers.base import TrackedRun
from streamrl.rewards.base import RewardItem
from streamrl.services.actors.actor_slot import ActorSlot
from streamrl.services.actors.answers import encode
from streamrl.services.actors.observe import Observer
from streamrl.services.controller.actor import Controller
from streamrl.services.controller.books import RunBook
from streamrl.services.controller.evaluator import Evaluator
from streamrl.services.controller.health.disk_watch import DiskWatch
from streamrl.services.controller.health.stall_monitor import StallMonitor
from streamrl.services.controller.parts import Parts
from streamrl.services.controller.trackers import tracked_run
from streamrl.services.learner.actor import LearnerRank
from streamrl.services.queue.actor import QueueActor, queue_settings
from streamrl.services.reward.actor import RewardActor
from streamrl.services.rollout.actor import RolloutReplica
from streamrl.services.rollout.completions import CompletionLog
from streamrl.services.rollout.evaluations import HeldOut
from streamrl.services.run.folder import RunFolder
from streamrl.tasks.order import PromptOrder
from streamrl.tasks.resolve import resolve_task
from streamrl.types import GenerationRequest, SamplingParams, Score, Version
from streamrl.weights.shm.shm import ShmPublisher

LONGEST_PROMPT = 7
FOREVER = 10**9


class Handle:
    """In the place of a Ray handle: `methods` answer, all others never do."""

    def __init__(self, **methods: Callable[..., Any]) -> None:
        self._methods = methods

    def __getattr__(self, name: str) -> "_Method":
        return _Method(self._methods.get(name))


class _Method:
    def __init__(self, answer: Callable[..., Any] | None) -> None:
        self._answer = answer

    def remote(self, *args: Any) -> "asyncio.Future[Any]":
        future = asyncio.get_running_loop().create_future()
        if self._answer is not None:
            future.set_result(self._answer(*args))
        return future


class ListedParts(Parts):
    """Says what it would start, and starts nothing."""

    def __init__(self, run_folder: str, config: Config) -> None:
        super().__init__(run_folder, config)
        self.made: list[tuple[str, int, tuple[Any, ...]]] = []

    def _make(self, name: str, cls: type, threads: int, *args: Any, **options: Any) -> Any:
        self.made.append((cls.__name__, threads, tuple(arg for arg in args if isinstance(arg, int | float))))
        return Handle()


def started_parts(config: Config, folder: Path) -> list[tuple[str, int, tuple[Any, ...]]]:
    """(class, threads, numbers it is told) of every part that a controller makes."""
    run = open_run(config, folder)
    controller = Controller(str(folder), msgspec.to_builtins(config))
    controller._parts = parts = ListedParts(str(run.path), config)
    controller._make_parts()
    controller._observer.close()
    controller._book.close()
    release()
    return parts.made


def pauses(config: Config, folder: Path) -> list[bool]:
    """What the watch of the disk tells the queue at its first look: to give out no groups, or nothing."""
    held: list[bool] = []
    queue = Handle(pause=lambda: "", hold=held.append)
    asyncio.run(DiskWatch(folder, config, queue, lambda text: None).check([""]))
    return held


def taken_groups(config: Config, folder: Path) -> list[tuple[int, int]]:
    """(number, index of its item) of what the queue gives out before any training, and the rollouts pending."""

    async def take() -> list[tuple[int, int]]:
        actor = QueueActor(str(folder), msgspec.to_builtins(config))
        await actor.open(0, LONGEST_PROMPT)
        tickets = await actor.take("rollout-0", 0, Version(0, 0), FOREVER)
        status = await actor.status()
        await actor.close()
        return [(ticket.number, ticket.data_index) for ticket in tickets] + [(status["rows_pending"], -1)]

    return asyncio.run(take())


def kept_groups(config: Config, folder: Path) -> list[Any]:
    """What becomes of three groups, of rewards all 0, of some 1 and all 1, and what a learner is told after each."""
    task = resolve_task(config.task.name, config.task.held_out)
    settings = queue_settings(config, task, LONGEST_PROMPT)
    index = ReplayIndex(settings, PromptOrder(task.num_train, 0), SystemClock())
    index.issue("rollout-0", 0, 3)
    told = []
    for number, ones in enumerate((0, 1, settings.group_size)):
        keys = [(number, sample) for sample in range(settings.group_size)]
        accept(index, keys, offset=number)
        score(index, keys, reward=np.arange(settings.group_size) < ones)
        told.append(_said(lambda: index.lease(0)))
    return [told, index.counts().groups_dropped, index.counts().groups_ready]


def turns(config: Config, folder: Path) -> list[int]:
    """The items of three passes over three prompts, whose rewards are all 0, all 1, and some 1."""
    task = resolve_task(config.task.name, config.task.held_out)
    settings = queue_settings(config, task, LONGEST_PROMPT)
    index = ReplayIndex(settings, PromptOrder(3, 0), SystemClock())
    items = []
    for number in range(9):
        (ticket,) = index.issue("rollout-0", 0, 1)
        items.append(ticket.data_index)
        keys = [(number, sample) for sample in range(settings.group_size)]
        accept(index, keys, offset=number)
        score(index, keys, reward=np.arange(settings.group_size) < (0, settings.group_size, 1)[ticket.data_index])
    return items


def generated(config: Config, folder: Path) -> list[Any]:
    """Ten requests through the engine of the configuration, with the sampling of a replica's log."""
    torch_threads = torch.get_num_threads()
    log = CompletionLog(folder, config, "rollout-0", 0)
    log.close()
    length = LONGEST_PROMPT + log.sampling.drawn.max_new_tokens
    engine = build_engine(config, Path(config.model.path or ""), length, replica="rollout-0")
    threads = torch.get_num_threads()
    torch.set_num_threads(torch_threads)
    prompt = np.array([1, 4, 5], np.int32)
    engine.submit([GenerationRequest(f"r{i}", prompt, i, log.sampling.drawn, (2,)) for i in range(10)])
    results, passes, most = [], 0, 0
    while engine.has_work:
        results += engine.step()
        passes, most = passes + 1, max(most, engine.stats().running)
    total = engine.stats().kv_bytes_total
    engine.close()
    told = [(one.request_id, one.token_ids.tolist(), repr(one.logprobs), one.finish_reason) for one in results]
    return [type(engine).__name__, threads, passes, most, total, sorted(told)]


def ended_in_time(config: Config, folder: Path) -> int:
    """Of ten requests, those that ended within as many steps as any may take."""
    engine = build_engine(config, Path(config.model.path or ""), LONGEST_PROMPT + 4)
    sampling = SamplingParams(max_new_tokens=4)
    engine.submit([GenerationRequest(f"r{i}", np.array([1], np.int32), i, sampling, ()) for i in range(10)])
    ended = sum(len(engine.step()) for _ in range(20))
    engine.close()
    return ended


def tokens_of_two_steps(config: Config, folder: Path) -> int:
    """What one request has after two steps of the engine, the second interrupted."""
    engine = build_engine(config, Path(config.model.path or ""), LONGEST_PROMPT + 4)
    engine.submit([GenerationRequest("r", np.array([1], np.int32), 0, SamplingParams(max_new_tokens=4), ())])
    engine.step()
    engine.interrupt()
    engine.step()
    tokens = engine.stats().generated_tokens
    engine.close()
    return tokens


def arithmetic(config: Config, folder: Path) -> bool:
    """Whether the engine has chosen how to multiply rows."""
    engine = build_engine(config, Path(config.model.path or ""), LONGEST_PROMPT + 4)
    chosen = engine.stats().arithmetic is not None
    engine.close()
    return chosen


def weights_of(config: Config, folder: Path) -> str:
    return str(load_model(Path(config.model.path or ""), config.model.dtype).dtype)


def segment_size(config: Config, folder: Path) -> int:
    """Bytes of the file that a replica's log begins with."""
    log = CompletionLog(folder, config, "rollout-0", 0)
    (path,) = (folder / "queue/completions").glob("*.arrow")
    size = path.stat().st_size
    log.close()
    return size


# ---- the reward stage


async def _with_reward(config: Config, folder: Path, use: Callable[[RewardActor], Any]) -> Any:
    open_run(config, folder)
    actor = RewardActor(str(folder), msgspec.to_builtins(config), Handle())
    await actor.start(0)
    try:
        return await use(actor)
    finally:
        await actor._pool.close()
        await asyncio.to_thread(actor._writer.close)
        actor._observer.close()
        release()


def reward_scores(config: Config, folder: Path) -> Any:
    """The score of an evaluation with sixteen answers, by the reward stage."""

    async def use(actor: RewardActor) -> Any:
        items = [RewardItem(completion=str(i % 3), prompt=str(i), payload='{"answer":"1"}') for i in range(16)]
        score = await actor.score_evaluation(encode(Evaluation(Version(0, 0), items, [], 16)))
        return score, len(set(actor._pool.pids))

    return asyncio.run(_with_reward(config, folder, use))


def too_many_failures(config: Config, folder: Path) -> str:
    """What the reward stage says when a third of a step's scores failed."""

    async def use(actor: RewardActor) -> str:
        scores = [Score.failed("no") if i % 3 == 0 else Score.ok(1.0) for i in range(config.rollouts_per_step)]
        return _said(lambda: actor._failures.add(scores))

    return asyncio.run(_with_reward(config, folder, use))


def _said(call: Callable[[], Any]) -> str:
    try:
        call()
    except StreamRLError as error:
        return str(error)
    return "nothing"


async def _said_async(call: Any) -> str:
    try:
        await call
    except StreamRLError as error:
        return str(error)
    return "nothing"


# ---- a replica


async def with_replica(
    config: Config, folder: Path, use: Callable[[RolloutReplica, RunFolder], Any], epoch: int = 0
) -> Any:
    run = open_run(config, folder) if epoch == 0 else RunFolder.open(folder)
    store, queue = Handle(join=lambda *_: None), Handle(serving=lambda *_: None, pause=lambda: "")
    replica = RolloutReplica("rollout-0", str(folder), msgspec.to_builtins(config), queue, store)
    await replica.start(epoch, LONGEST_PROMPT)
    try:
        return await use(replica, run)
    finally:
        await asyncio.to_thread(replica._thread.stop)
        await asyncio.to_thread(replica._log.close)
        replica._observer.close()
        release()


def taken_up(config: Config, folder: Path) -> str:
    """What a replica says that takes a version up while a request without end is running."""

    async def use(replica: RolloutReplica, run: RunFolder) -> str:
        request = GenerationRequest("r", np.array([1], np.int32), 0, replica._log.sampling.drawn, ())
        await asyncio.wrap_future(replica._thread.call(lambda engine: (engine.submit([request]), engine.step())))
        with ShmPublisher(run.run_id, run.key()) as publisher:
            manifest = publisher.publish([("w", torch.zeros(2))], Version(0, 1))
            return await _said_async(replica._take_up(manifest))

    return asyncio.run(with_replica(config, folder, use))


def first_piece(config: Config, folder: Path) -> int:
    """Tokens of a rollout that has no end that a replica journals first."""

    async def use(replica: RolloutReplica, run: RunFolder) -> int:
        replica._rollouts._running.issue("r", finished(0, 0).issued)
        request = GenerationRequest("r", np.array([1], np.int32), 0, replica._log.sampling.drawn, ())
        replica._thread.submit([request])
        await replica._journal._wake.wait()
        return len(replica._journal._pending[0].tokens.token_ids)

    return asyncio.run(with_replica(config, folder, use))


def unanswered_receipt(config: Config, folder: Path) -> str:
    """What a replica says whose frame the queue never acknowledges."""

    async def use(replica: RolloutReplica, run: RunFolder) -> str:
        return await _said_async(replica._writer._write([finished(0, 0)], 0))

    return asyncio.run(with_replica(config, folder, use))


def held_out_answers(config: Config, folder: Path) -> int:
    """Held-out prompts that a replica's evaluation answers."""
    task = resolve_task(config.task.name, config.task.held_out)
    model = Path(config.model.path or "")
    max_length = LONGEST_PROMPT + config.rollout.sampling.max_new_tokens
    held_out = HeldOut(config, model, max_length, task, load_tokenizer(model))
    work = held_out.work({}, Version(0, 1))
    while not work.done:
        work.step()
    return len(held_out.result().items)


def held_out_ids(config: Config, folder: Path) -> list[bytes]:
    """What a replica's evaluation answers, by the model itself."""
    model = Path(config.model.path or "")
    task, tokenizer = resolve_task(config.task.name, config.task.held_out), load_tokenizer(model)
    held_out = HeldOut(config, model, LONGEST_PROMPT + config.rollout.sampling.max_new_tokens, task, tokenizer)
    work = held_out.work(dict(load_model(model, config.model.dtype).named_parameters()), Version(0, 1))
    while not work.done:
        work.step()
    return [item.token_ids for item in held_out.result().items]


# ---- deadlines


def slow_start(config: Config, folder: Path) -> str:
    return asyncio.run(_rank_says(config, folder, lambda rank: rank.build(Handle())))


def slow_checkpoint(config: Config, folder: Path) -> str:
    async def save(rank: LearnerRank) -> None:
        await rank.build(Handle())
        # A commit that begins when its time is over, however quick the disk is.
        over = threading.Event()
        rank._saver._thread.submit(over.wait)
        try:
            await rank._save()
            await rank._saver.finish()
        finally:
            over.set()

    return asyncio.run(_rank_says(config, folder, save))


async def _rank_says(config: Config, folder: Path, call: Callable[[LearnerRank], Any]) -> str:
    run = open_run(config, folder)
    rank = LearnerRank(0, str(folder), msgspec.to_builtins(config), str(run.path / "store"), Handle(), Handle())
    threads = torch.get_num_threads()
    try:
        return await _said_async(call(rank))
    finally:
        await asyncio.to_thread(rank._compute.shutdown)
        rank._core.close()
        rank._observer.close()
        release()
        torch.set_num_threads(threads)


def stands_still_after(config: Config, folder: Path) -> list[str]:
    """What is told of a run of which no part answers for a hundred seconds."""

    async def look_once() -> list[str]:
        told: list[str] = []
        clock = VirtualClock()
        silent = Says(queue=None, reward=None, learner=[], replicas={}, weights=None)
        answers = Handle(ask=lambda: silent, far_stacks=list)
        monitor = StallMonitor(
            open_run(config, folder),
            config,
            clock,
            ask=answers.ask.remote,
            disk_low=lambda: False,
            far_stacks=answers.far_stacks.remote,
            tell=told.append,
        )
        await monitor.check()
        clock.advance(100.0)
        await monitor.check()
        return [text.partition(",")[0] for text in told]

    return asyncio.run(look_once())


def slow_evaluation(config: Config, folder: Path) -> str:
    """What is said when the last evaluation never ends."""

    async def wait() -> str:
        book = RunBook(open_run(config, folder), config)
        evaluator = Evaluator(config, Handle(), ActorSlot(), book, on_target=Handle(), fence=Handle())
        evaluator.due(Version(0, 1))
        said = await _said_async(evaluator.all_scored())
        book.close()
        return said

    return asyncio.run(wait())


# ---- what is recorded


def recorded(config: Config, folder: Path) -> list[str]:
    """The files that a part and the books leave."""
    run = open_run(config, folder)
    observer = Observer(run, config, "part")
    with observer.span("work"):
        time.monotonic_ns()
    observer.close()
    release()
    book = RunBook(run, config)
    book.report("step", {"step": 1, "time/step": 1.0, "time/wait": 0.5, "staleness/max": 0, "staleness/mean": 0.0})
    book.finish_trackers(stopping=False)
    book.close()
    return sorted({str(path.relative_to(folder).parent) for path in folder.rglob("*") if path.is_file()})


def known_to_trackers(config: Config, folder: Path) -> TrackedRun:
    return tracked_run(open_run(config, folder), config)


def figures_told(config: Config, folder: Path) -> bool:
    """Whether a tracker is told the score of a step by a name of verl's."""
    recorded(config, folder)
    (events,) = (folder / "tensorboard").iterdir()
    return b"timing_s/step" in events.read_bytes()


def logged_bytes(config: Config, folder: Path) -> int:
    """Bytes that the log of a part takes which has much to say, in thousands."""
    observer = Observer(open_run(config, folder), config, "part")
    for _ in range(2000):
        observer.log.info("the same again")
    observer.close()
    release()
    return sum(path.stat().st_size for path in (folder / "logs").glob("part.log*")) // 1000
