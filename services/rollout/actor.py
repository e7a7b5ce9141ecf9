"""A rollout replica: takes groups, samples them, writes what it sampled, and follows the published versions.

Three loops and one engine thread. `_take_loop` asks the queue for as many groups as the engine has room for (waits:
admission; unblocked by: a new version, a trained batch). The row writer turns what finished into durable Arrow frames
and tells the queue (`streamrl.services.rollout.row_writer`). `_follow_loop` pulls each new version and hands it to the
engine between two tokens (waits: the weight store; unblocked by: the learner). Beside them the journal writes down what
has not ended yet (`streamrl.services.rollout.partial_journal`).

The replica answers under one verified version at a time and takes no group before it acknowledged one (invariant 6).
What it may do when is decided by `streamrl.scheduling.replica_state`.
"""

import asyncio
import gc
import itertools
import time
from collections.abc import Awaitable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import ray
import ray.actor

from streamrl.buffers.rows.records import AcceptedRows
from streamrl.buffers.segments.places import HOME
from streamrl.config import Config
from streamrl.config.estimates import sizes as limits
from streamrl.engines.build import build_engine
from streamrl.engines.server.process.place import ServerPlace
from streamrl.gateway.token_updates import TokenUpdate
from streamrl.models.tokenizer import load_tokenizer
from streamrl.scheduling.replica_capacity import ReplicaCapacity
from streamrl.scheduling.replica_state import ReplicaStateMachine
from streamrl.services.actors.answers import encode
from streamrl.services.actors.deadline import within, within_or_paused
from streamrl.services.actors.named_tasks import run_all
from streamrl.services.actors.observe import Observer
from streamrl.services.actors.process_environment import extend_import_path, import_path
from streamrl.services.rollout.client_requests import GATEWAY, ClientRequests
from streamrl.services.rollout.completions import CompletionLog
from streamrl.services.rollout.engine_status import engine_status
from streamrl.services.rollout.engine_thread import EngineThread
from streamrl.services.rollout.fetch_to_node import fetch_to_node
from streamrl.services.rollout.group_requests import GroupRequests
from streamrl.services.rollout.partial_journal import PartialJournal
from streamrl.services.rollout.row_writer import RowWriter
from streamrl.services.rollout.rows import Finished, FinishedEpisode
from streamrl.services.run.folder import RunFolder
from streamrl.services.run.layout import model_folder
from streamrl.tasks.load import open_task
from streamrl.tasks.prompts import EncodedPrompts, bytes_beside_tokens
from streamrl.types import (
    Arithmetic,
    EvalSampling,
    FrameRef,
    GenerationRequest,
    GenerationResult,
    PartialTokens,
    ServerLoad,
    UpdateMode,
    Version,
)
from streamrl.weights.manifest import WeightManifest, decode
from streamrl.weights.transport.pulls import in_thread
from streamrl.weights.update_times import UpdateTimes

if TYPE_CHECKING:
    from streamrl.services.rollout.episode_evaluations import EpisodesHeldOut
    from streamrl.services.rollout.episodes import EpisodeRollouts
    from streamrl.services.rollout.evaluations import HeldOut
    from streamrl.services.rollout.play import Parts
    from streamrl.services.rollout.single_turn import SingleTurnRollouts
    from streamrl.services.weights.node import NodeSlot

T = TypeVar("T")


class RolloutReplica:
    """See the module."""

    def __init__(
        self,
        name: str,
        run_folder: str,
        config: dict[str, Any],
        queue: ray.actor.ActorHandle,
        store: ray.actor.ActorHandle,
    ) -> None:
        extend_import_path()
        self._name = name
        self._config = msgspec.convert(config, Config)
        self._run_folder = run_folder
        self._queue = queue
        self._store = store
        self._unwanted: set[int] = set()
        """Groups given up since work was last asked for: they may be among those that are on their way."""
        self._two_versions = 0
        self._updates_in_flight = 0
        self._took: UpdateTimes | None = None
        """Of the last update, until the weight store was told."""

    async def ray_node(self) -> str:
        """Ray's id of the node that it was placed on."""
        return ray.get_runtime_context().get_node_id()

    async def start(self, epoch: int, longest_prompt: int, slot: "NodeSlot | None" = None) -> Arithmetic | None:
        """Build the engine, join the weight store, and say how the engine multiplies rows. The replica serves nothing
        before `run` pulled a version.

        epoch: fences; after a restart the queue refuses whatever an older process still sends. longest_prompt: in
        tokens, over the task's training and held-out prompts. slot: the node, where that is not the run's own.
        """
        # Here and not above: the controller makes this class and has no use for torch.
        from streamrl.services.rollout.play import open_rollouts
        from streamrl.weights.served import ServedVersions

        self._epoch = epoch
        self._slot = slot
        self._run = RunFolder.open(Path(slot.folder if slot is not None else self._run_folder))
        self._observer = Observer(self._run, self._config, self._name)
        max_length = limits.longest_row(self._config, longest_prompt)
        self._loop = asyncio.get_running_loop()
        self._state = ReplicaStateMachine(self._name, self._epoch)
        self._orders = itertools.count()
        self._routable, self._news = asyncio.Event(), asyncio.Event()
        self._took_last, self._left = asyncio.Event(), asyncio.Event()
        self._capacity = ReplicaCapacity(self._config.rollout.slots, self._config.rollout.group_size)
        self._death: asyncio.Future[None] = self._loop.create_future()
        folder = model_folder(self._run.path, self._config)
        tokenizer = load_tokenizer(folder)
        task = open_task(self._config, folder)
        prompts, stops = EncodedPrompts(task, tokenizer), tokenizer.eos_token_ids
        node = slot.node if slot is not None else HOME
        self._log = CompletionLog(self._run.path, self._config, self._name, self._epoch, node)
        self._requests = GroupRequests(self._config, prompts, stops, self._log.sampling, self._queue)
        self._versions = ServedVersions(self._run.run_id, self._run.key())
        self._journal = self._new_journal(node)
        text = bytes_beside_tokens(self._config, task, longest_prompt)
        worst_row = limits.worst_row_bytes(self._config, longest_prompt, text)
        room = limits.frame_rows(self._config, worst_row)
        self._writer = RowWriter(self._log, room, self._hand_in, self._durably, self._journal.ended, self._observer)
        self._thread = self._new_thread(folder, max_length)
        self._client_requests = ClientRequests(self._name, self._thread)
        played = await open_rollouts(self._parts(), folder, max_length, task, tokenizer)
        self._rollouts: SingleTurnRollouts | EpisodeRollouts = played[0]
        self._evaluation: HeldOut | EpisodesHeldOut = played[1]
        await asyncio.wrap_future(self._thread.start())
        # What was loaded stays as long as this process; looking through it for garbage would stop everything for 0.2 s.
        gc.freeze()
        await self._store.join.remote(self._name)
        self._state.started()
        arithmetic = (await asyncio.wrap_future(self._thread.stats())).arithmetic
        told = {} if arithmetic is None else {"products": str(arithmetic)}
        self._observer.log.info("started", epoch=epoch, engine=self._config.rollout.engine, **told)
        return arithmetic

    def _new_thread(self, folder: Path, max_length: int) -> EngineThread:
        place = ServerPlace(Path(import_path()), self._run.shared_memory_prefix)
        make_engine = partial(build_engine, self._config, folder, max_length, place, self._name)
        return EngineThread(
            make_engine,
            self._deliver,
            self._engine_died,
            self._observer.trace,
            report=self._report,
            report_every=self._journal.every,
            hear=self._on_load,
            show=self._report,
        )

    def _parts(self) -> "Parts":
        from streamrl.services.rollout.play import Parts

        thread, journal, warn = self._thread, self._journal, self._observer.log.warning
        ended, ordered, died = self._finished, self._ordered, self._engine_died
        return Parts(self._name, self._config, self._run.path, thread, journal, ended, ordered, died, warn)

    def _new_journal(self, node: str) -> PartialJournal:
        def tell(text: str) -> None:
            self._observer.log.warning("a journal of unfinished rollouts is of no use", text=text)

        return PartialJournal(self._run.path, self._config, self._name, self._epoch, node, self._durably, tell)

    async def run(self) -> None:
        """Serve until the queue and the weight store are closed, or until it has left."""
        write = asyncio.create_task(run_all({"write": self._writer.loop(), "journal": self._journal.run()}))
        loops = asyncio.create_task(run_all({"take": self._take_loop(), "follow": self._follow_loop()}))
        left = asyncio.create_task(self._left.wait())
        ours: tuple[asyncio.Future[Any], ...] = (write, loops, left)
        try:
            await asyncio.wait({*ours, self._death}, return_when=asyncio.FIRST_COMPLETED)
            for task in (self._death, write, loops):
                if task.done():
                    task.result()
        finally:
            for one in ours:
                one.cancel()
            await asyncio.gather(write, loops, left, return_exceptions=True)
            self._client_requests.close()
            await self._rollouts.close()
            await asyncio.to_thread(self._thread.stop)
            await asyncio.to_thread(self._log.close)
            await asyncio.to_thread(self._journal.close)
            self._observer.close()

    async def leave(self) -> None:
        """Take no more groups, let those that it has end, hand them in, and end `run`. Of a replica that serves."""
        await self._queue.retire.remote(self._name, self._epoch)
        await self._took_last.wait()
        while len(self._rollouts):
            self._news.clear()
            await self._news.wait()
        await self._writer.drained()
        self._left.set()

    async def status(self) -> dict[str, Any]:
        """Counters and state, for the live view and for `streamrl status`."""
        return {
            "name": self._name,
            "state": self._state.state.value,
            **await engine_status(self._thread),
            "guests": len(self._client_requests),
            "two_version_rollouts": self._two_versions,
            "updates_in_flight": self._updates_in_flight,
            **msgspec.to_builtins(self._journal.figures),
            **self._rollouts.status(),
            "paused": self._log.pause or self._journal.pause,
        }

    async def evaluate(self, manifest: bytes, sampling: EvalSampling | None = None) -> bytes:
        """Complete the held-out prompts under exactly this version, beside the stream, as `eval` or `sampling` has it.

        Returns the completions as the reward stage takes them (`streamrl.services.rollout.evaluations.encode`).
        """
        weights = decode(manifest)
        folder = await self._fetch(weights, "evaluation")
        with self._observer.span("evaluate", "evaluation"), ExitStack() as opened:
            tensors = await in_thread(opened.enter_context, self._versions.open(weights, folder))
            work = self._evaluation.work(tensors, Version(*weights.version), sampling)
            await asyncio.wrap_future(self._thread.run_spare(work))
        return encode(self._evaluation.result())

    # ---- client requests: called by the gateway

    async def open_client_requests(self) -> None:
        """Wait until requests may be given to it."""
        await self._routable.wait()

    async def order_client_requests(
        self, session: int, requests: list[GenerationRequest], aborted: list[str], gateway: str = GATEWAY
    ) -> None:
        """Answer some requests beside the stream, and abort others. session: of the gateway, a new one each time.
        gateway: its name."""
        self._client_requests.order(session, requests, aborted, gateway)

    async def client_updates(self, session: int, gateway: str = GATEWAY) -> tuple[Version, list[TokenUpdate]]:
        """The version that serves, and what the requests of the gateway have sampled since this was asked last; waits
        for some, a second at most."""
        news = await self._client_requests.updates(session, gateway)
        assert self._state.version is not None, "it was routable"
        return self._state.version, news

    async def abort_groups(self, numbers: list[int]) -> None:
        """Generate these groups no further: nobody wants them any more, and their rows are ignored."""
        self._unwanted.update(numbers)
        self._rollouts.abort(numbers)

    # ---- taking work

    async def _take_loop(self) -> None:
        await self._routable.wait()
        while True:
            room = await self._wait_for_capacity()
            self._unwanted.clear()  # the queue gives none of these out any more
            tickets = await self._queue.take.remote(self._name, self._epoch, self._state.version, room)
            if not tickets:
                self._took_last.set()
                return
            asked = await self._requests.of(tickets)
            self._state.accepted(len(asked))
            await self._rollouts.begin(asked, lambda: self._state.version)
            self._rollouts.abort(self._unwanted)

    async def _wait_for_capacity(self) -> int:
        """Groups that the engine can take; at least one."""
        while not (groups := self._capacity.groups(len(self._rollouts))):
            self._news.clear()
            await self._news.wait()
        return groups

    def _on_load(self, load: ServerLoad) -> None:
        """Called by the engine thread."""
        self._loop.call_soon_threadsafe(self._collect_load, load)

    def _collect_load(self, load: ServerLoad) -> None:
        self._capacity.update(load)
        self._news.set()

    # ---- writing what finished

    def _deliver(self, results: list[GenerationResult], idle: bool) -> None:
        """Called by the engine thread."""
        self._loop.call_soon_threadsafe(self._collect, results, idle)

    def _collect(self, results: list[GenerationResult], idle: bool) -> None:
        self._rollouts.take(self._client_requests.take(results), idle)

    def _finished(self, finished: Sequence[Finished] | Sequence[FinishedEpisode], count: int, idle: bool) -> None:
        """`streamrl.services.rollout.rows.Ended`."""
        self._state.finished(count)
        self._two_versions += sum(one.num_versions > 1 for one in finished)
        self._writer.add(finished, idle)
        self._capacity.ended(count)
        self._news.set()

    def _report(self, pieces: list[PartialTokens]) -> None:
        """Called by the engine thread."""
        self._loop.call_soon_threadsafe(self._collect_pieces, pieces)

    def _collect_pieces(self, pieces: list[PartialTokens]) -> None:
        if pieces := self._client_requests.take_pieces(pieces):
            self._rollouts.take_pieces(pieces)

    async def _hand_in(self, sequence: int, frame: FrameRef, rows: AcceptedRows) -> None:
        await self._queue.accept.remote(self._name, self._epoch, sequence, frame, rows)

    async def _durably(self, what: str, work: Awaitable[T]) -> T:
        """Await something that ends on a disk, and may wait for room there."""
        limit = self._config.deadlines.step_s
        return await within_or_paused(limit, work, who=self._name, what=what, pause=self._pause)

    async def _pause(self) -> str:
        return self._log.pause or self._journal.pause or await self._queue.pause.remote()

    # ---- following the weights

    async def _follow_loop(self) -> None:
        while True:
            took, self._took = self._took, None
            data = await self._store.newer_than.remote(self._name, self._state.version, took)
            if data is None:
                return
            await self._take_up(decode(data))

    async def _take_up(self, manifest: WeightManifest) -> None:
        """Verify a version, let the engine take it between two tokens, then say so to store and queue."""
        version = Version(*manifest.version)
        self._state.update(next(self._orders), version)
        in_flight = len(self._rollouts)
        began = time.monotonic()
        folder = await self._fetch(manifest, "weights")
        arrived = time.monotonic()
        with self._observer.span("update", "weights"), ExitStack() as opened:
            prepared = await in_thread(self._opened, opened, manifest, folder)
            mode = UpdateMode(self._config.rollout.update_mode)
            loaded = asyncio.wrap_future(self._thread.load(prepared, version, mode))
            limit, what = self._config.deadlines.update_s, f"taking up version {version}"
            stalled = await within(limit, loaded, who=self._name, what=what)
        self._state.loaded(version)
        self._took = UpdateTimes(arrived - began, time.monotonic() - arrived, stalled)
        self._updates_in_flight += in_flight > 0
        # The store hears of it with the question for the next version.
        await self._queue.serving.remote(self._name, self._epoch, version)
        self._routable.set()
        await self._journal.serves(version)

    def _opened(self, opened: ExitStack, manifest: WeightManifest, folder: Path | None) -> Any:
        """Beside the loop and the engine: digests of all bytes, the merge of adapters, the weights laid over them."""
        return self._thread.prepare(opened.enter_context(self._versions.open(manifest, folder)))

    async def _fetch(self, manifest: WeightManifest, track: str) -> Path | None:
        """Have the bytes of a version on this node; the folder of the copies, where there are any."""
        if self._slot is None:
            return None
        with self._observer.span("transfer", track):
            return await fetch_to_node(self._name, self._slot, manifest)

    def _ordered(self, order: "Future[None]") -> None:
        """Called by the engine thread. An order that it refused leaves rollouts that nobody generates."""
        error = None if order.cancelled() else order.exception()
        if error is not None:
            self._engine_died(error)

    def _engine_died(self, error: BaseException) -> None:
        """Called by the engine thread."""
        self._loop.call_soon_threadsafe(self._die, error)

    def _die(self, error: BaseException) -> None:
        if not self._death.done():
            self._death.set_exception(error)
