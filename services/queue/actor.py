"""The queue actor: hosts the replay queue, and with it every count that admission depends on.

A thin shell: it opens the queue and passes calls on. Replicas call `take` and `accept`, the reward stage `unscored`
and `add_scores`, the learner `lease` and `commit`; all of them wait here, none of them polls.
"""

import gc
import shutil
from pathlib import Path
from typing import Any

import msgspec

from streamrl.buffers.index.groups.quarantine import shown
from streamrl.buffers.index.groups.recent import Place, RecentGroup
from streamrl.buffers.index.submitted.offered import Standing
from streamrl.buffers.index.submitted.submissions import Outcome
from streamrl.buffers.ledger.records import Offered, Quarantined
from streamrl.buffers.queue.gathering import Objection
from streamrl.buffers.queue.replay_queue import ReplayQueue
from streamrl.buffers.rows.records import AcceptedRows, Lease, QueueSettings, ScoredRows, UnscoredFrame
from streamrl.buffers.segments.places import HOME, PARTIALS_DIR, node_of
from streamrl.buffers.segments.removal import SegmentRemover
from streamrl.clock import SystemClock
from streamrl.config import Config
from streamrl.config.estimates import sizes as limits
from streamrl.observability.component_means import Totals
from streamrl.scheduling.utilization import Waited
from streamrl.services.actors.process_environment import extend_import_path
from streamrl.services.run.layout import STACKS_FOLDER, model_folder
from streamrl.system.stacks import answer
from streamrl.tasks.base import StreamPrompt, SubmittedPrompt, Task
from streamrl.tasks.data.task import rows_left_out
from streamrl.tasks.load import open_task
from streamrl.tasks.order import order_of
from streamrl.tasks.prompts import bytes_beside_tokens
from streamrl.types import FrameRef, Ticket, Version


class QueueActor:
    """See the module."""

    def __init__(self, run_folder: str, config: dict[str, Any]) -> None:
        extend_import_path()
        # The index keeps a few objects for each row until a checkpoint covers it. None of them is part of a cycle, and
        # looking at all of them again and again would cost more than everything else here.
        gc.set_threshold(100_000, 50, 1000)
        self._config = msgspec.convert(config, Config)
        self._folder = Path(run_folder)
        self._remover = SegmentRemover(self._folder, self._config.queue.durability, limits.spare_bytes(self._config))
        answer("queue", self._folder / STACKS_FOLDER)
        self._over_budget = ""
        self._far_going: list[str] = []
        self._totals: Totals = {}

    async def open(self, resume_step: int, longest_prompt: int, accept_changed_data: bool = False) -> int:
        """Open the queue, fresh or from its ledger. Returns the incarnation of what is published from now on.

        resume_step: step of the checkpoint that is resumed, or 0. longest_prompt: in tokens; bytes are reserved for it.
        accept_changed_data: whether the data set may be another one than the ledger's.
        """
        self._task = task = open_task(self._config, model_folder(self._folder, self._config))
        order = order_of(task, self._config.seed)
        settings = queue_settings(self._config, task, longest_prompt)
        clock = SystemClock()
        if accept_changed_data:
            # What unfinished rollouts had sampled was sampled for a prompt that may be another one now.
            shutil.rmtree(self._folder / PARTIALS_DIR, ignore_errors=True)
        self._queue = ReplayQueue.open(self._folder, settings, order, clock, resume_step, accept_changed_data)
        await self._remover.clear()
        return self._queue.incarnation

    async def resume_from(self, step: int) -> int:
        """A learner starts again from a checkpoint of `step`; returns the incarnation of what it publishes."""
        return await self._queue.resume_from(step)

    async def found(self) -> dict[str, Any]:
        """What a learner that resumes now begins with."""
        return msgspec.to_builtins(self._queue.found())

    async def next_epoch(self, writer: str) -> int:
        """Fence every earlier process of this name; the epoch of the next one."""
        return await self._queue.next_epoch(writer)

    async def died(self, replica: str) -> tuple[int, bool, int]:
        """A replica has died: as `next_epoch`; whether that was the doing of one group, which is given up; how many
        groups it had."""
        epoch, groups = await self._queue.replace(replica, died=True)
        return epoch, replica in self._queue.quarantined.excused, groups

    async def quarantined(self, known: int) -> list[dict[str, Any]]:
        """Prompts that this process quarantined, behind the first `known`, as soon as there is one; [] once closed."""
        return [self._quarantine_record(one) for one in await self._queue.quarantined.newer(known)]

    async def take(self, replica: str, epoch: int, serving: Version, room: int) -> list[Ticket]:
        return await self._queue.take(replica, epoch, Version(*serving), room)

    async def serving(self, replica: str, epoch: int, version: Version) -> None:
        self._queue.serving(replica, epoch, Version(*version))

    async def retire(self, replica: str, epoch: int) -> None:
        self._queue.retire(replica, epoch)

    async def submit(self, stream: str, asked: list[SubmittedPrompt]) -> list[int]:
        """Take prompts of clients; their numbers, once they are durable."""
        return await self._queue.submitted.submit(stream, asked)

    async def known(self, stream: str, keys: list[str]) -> list[int | None]:
        """The numbers of submitted prompts by their keys; None for one that nobody submitted."""
        return self._queue.submitted.known(stream, keys)

    async def prompts(self, items: list[int]) -> list[StreamPrompt | None]:
        """Submitted prompts by number; None for one whose group has ended."""
        return self._queue.submitted.prompts(items)

    async def ended(self, items: list[int]) -> list[Outcome]:
        """Those among submitted prompts that have ended by now."""
        return await self._queue.submitted.ended(items)

    async def ends(self, after: int) -> list[int]:
        """Which submitted prompts ended, without the first `after`, as soon as there is one more; [] once closed."""
        return await self._queue.submitted.ends(after)

    async def cancel(self, items: list[int]) -> list[tuple[int, str]]:
        """Give up submitted prompts; (group, replica) of those that ran."""
        return await self._queue.submitted.cancel(items)

    async def standing(self, key: str) -> Standing | None:
        """What became of a trajectory that a client offered; None for one that nobody offered."""
        return await self._queue.trajectories.standing(key)

    async def place(self, name: str, versions: list[Version]) -> int | Objection:
        """How many trajectories of a group's name came before; or why one of these versions will not be taken."""
        return self._queue.trajectories.place(name, [Version(*version) for version in versions])

    async def offer(self, writer: str, epoch: int, told: Offered, versions: list[Version]) -> Standing | Objection:
        """Take a trajectory whose rows are durable; what became of it."""
        versions = [Version(*version) for version in versions]
        return await self._queue.trajectories.offer(writer, epoch, told, versions)

    async def accept(self, replica: str, epoch: int, sequence: int, frame: FrameRef, rows: AcceptedRows) -> None:
        await self._queue.accept(replica, epoch, sequence, frame, rows)

    async def unscored(self, scorer: str, epoch: int, max_rows: int) -> list[UnscoredFrame]:
        return await self._queue.unscored(scorer, epoch, max_rows)

    async def add_scores(
        self, scorer: str, epoch: int, sequence: int, frame: FrameRef, rows: ScoredRows, totals: Totals
    ) -> None:
        """totals: of the components of all scores of this scorer so far, for the metrics."""
        await self._queue.add_scores(scorer, epoch, sequence, frame, rows)
        self._totals = totals

    async def requeue_unscored(self, scorer: str) -> int:
        return self._queue.requeue_unscored(scorer)

    async def lease(self, step: int) -> Lease | None:
        return await self._queue.lease(step)

    async def commit(self, step: int) -> dict[str, Any]:
        """The step is trained; returns the books for the metrics."""
        await self._queue.commit(step)
        return {**await self.status(), "components": self._totals}

    async def covered(self, step: int, oldest: int) -> str:
        """A checkpoint of `step` is committed; a resume could begin at the step `oldest` still. Log files that this
        lets go are removed. Returns why they still take more than their budget, or ""."""
        await self._queue.covered(step)
        going, self._over_budget = self._queue.removable(oldest)
        here = [path for path in going if node_of(path) == HOME]
        self._far_going += [path for path in going if node_of(path) != HOME]
        await self._remover.remove(here)
        return self._over_budget

    async def released_far_files(self) -> list[str]:
        """Log files of other nodes that `covered` let go since this was asked last: for the nodes to remove."""
        going, self._far_going = self._far_going, []
        return going

    async def recent(self, place: Place | None, limit: int) -> tuple[list[RecentGroup], Place | None]:
        """A page of the groups that finished, the newest first: for who looks at what is sampled."""
        return self._queue.recent.page(Place(*place) if place is not None else None, limit)

    async def overdue(self, limit_s: float) -> dict[str, str]:
        """Replicas that hold a group for longer than the limit, each with its oldest one in words. Under "": one that
        waits for a replica or for scores for too long (`streamrl.buffers.index.running`)."""
        late: dict[str, str] = {}
        for number, replica in self._queue.overdue(limit_s):
            late.setdefault(replica, f"group {number} has not finished after {limit_s:g} s")
        return late

    async def lose(self, frames: list[FrameRef], leased: bool) -> tuple[int, int]:
        """These frames can be read nowhere any more: (groups, rows) that are given up and issued again."""
        return await self._queue.lose(frames, leased)

    async def hold(self, on: bool) -> None:
        """Give out no groups until it is taken back: the disk is nearly full."""
        self._queue.hold(on)
        if on:
            await self._remover.clear()

    async def pause(self) -> str:
        """What a full disk keeps the ledger waiting for, in words; "" while it does not wait."""
        return self._queue.pause

    async def status(self) -> dict[str, Any]:
        """The queue's books, as plain values."""
        counts = self._queue.counts()
        told = {"bytes_used": counts.bytes_used, "rows_waiting": counts.rows_waiting}
        return {**msgspec.to_builtins(counts), **told, **rows_left_out(self._task), "over_budget": self._over_budget}

    async def movement(self) -> dict[str, Any]:
        """The books, whether the learner waits for rows, and what a full disk keeps it `paused` for: for who sees
        whether anything moves."""
        return {**await self.status(), "learner_waits": self._queue.waits.learner_waits, "paused": self._queue.pause}

    async def waits(self) -> tuple[int, Waited]:
        """(the learner's step, how long it and the replicas have waited here), for whoever scales them."""
        return self._queue.counts().next_step, self._queue.waits.until_now()

    async def detailed_status(self) -> dict[str, Any]:
        """The same with the oldest row that waits, for a person: looks at every row that waits."""
        quarantined = shown(self._queue.quarantined.listed())
        told = {"oldest": msgspec.to_builtins(self._queue.oldest()), "quarantined": quarantined}
        return {**await self.status(), **told}

    def _quarantine_record(self, one: Quarantined) -> dict[str, Any]:
        """With the prompt's id, as the rows of its groups have it."""
        return {**msgspec.structs.asdict(one), "prompt_id": self._task.train(one.item).prompt_id}

    async def close(self) -> None:
        """Wake every waiter with its typed end; what was acknowledged stays."""
        self._queue.close()
        await self._remover.close()


def queue_settings(config: Config, task: Task, longest_prompt: int) -> QueueSettings:
    """What the replay queue is told of a run."""
    text = bytes_beside_tokens(config, task, longest_prompt)
    return QueueSettings(
        group_size=config.rollout.group_size,
        groups_per_step=config.learner.groups_per_step,
        max_staleness=config.learner.max_staleness,
        byte_budget=config.queue.byte_budget,
        rollout_bytes=limits.worst_row_bytes(config, longest_prompt, text),
        total_groups=config.total_groups,
        lead=config.learner.lead,
        late=config.learner.late,
        journalled=config.journals_partials,
        filter=config.learner.filter,
        mask_truncated=config.learner.overlong.mask_truncated,
        greedy_sample=config.greedy_sample,
        components=config.learner.algorithm.component_names,
        durability=config.queue.durability,
        commit_interval_s=config.queue.commit_interval_ms / 1e3,
        retain=config.queue.retain,
        disk_budget=config.queue.disk_budget,
        fingerprint=task.fingerprint(),
        seed=config.seed,
        submitted_bytes=config.gateway.waiting_bytes,
        streams=config.gateway.shares,
        quarantine_after=config.rollout.quarantine_after,
        curriculum=config.data.curriculum,
    )
