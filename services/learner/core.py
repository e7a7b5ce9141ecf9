"""One learner rank without Ray: the model, what it trains on, and what it writes.

All methods are synchronous and belong to one thread, but for the two that say otherwise; those marked *collective* are
called by every rank in the same order. It reads rows by memory map, and knows neither who gives it a plan nor who takes
what it publishes.
"""

import gc
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from streamrl.algorithms.aggregation import Denominators
from streamrl.buffers.rows.gather import rollout_rows
from streamrl.buffers.rows.records import Lease
from streamrl.buffers.segments.places import writer_of
from streamrl.buffers.segments.reader import SegmentReader
from streamrl.config import Config
from streamrl.config.estimates import sizes as limits
from streamrl.errors import ConfigError, NonFiniteError
from streamrl.learner.auxiliary.auxiliary import AuxiliaryModel, step_of_both
from streamrl.learner.batch.mini_batches import MiniBatch
from streamrl.learner.batch.packing import PackedBatch, pack
from streamrl.learner.batch.scored_batch import Part
from streamrl.learner.blame import Logprobs, with_its_row
from streamrl.learner.checkpoint import checkpoint
from streamrl.learner.checkpoint.retention import oldest_step
from streamrl.learner.objectives import nll_loss
from streamrl.learner.parallel.meeting import Meeting, listen
from streamrl.learner.sources import Sources
from streamrl.learner.supervised.warmup import Warmup, WarmupProgress, warmup_optimizer
from streamrl.models.export import export_hf
from streamrl.models.load import load_model, prepare_model_folder
from streamrl.models.tokenizer import load_tokenizer
from streamrl.observability.timeline import StepTimer
from streamrl.services.learner import warm_up
from streamrl.services.learner.auxiliary import make_auxiliary_model
from streamrl.services.learner.backends import BACKENDS
from streamrl.services.learner.reference_rewards import pay_divergence
from streamrl.services.learner.step_plan import STOP, Share, StepPlan, decode, encode, make_plan, num_shares, shares_of
from streamrl.services.learner.token_log import TokenLog
from streamrl.services.learner.version_writer import Span, VersionWriter, WeightSnapshot, Written, untold
from streamrl.services.run.folder import RunFolder
from streamrl.services.run.layout import model_folder, start_folder
from streamrl.system.disk_space import DiskSpace
from streamrl.tasks.base import is_demonstrated
from streamrl.tasks.load import load_task
from streamrl.types import RolloutRows, Version
from streamrl.weights.tensors import snapshot, weights_digest


class LearnerCore:
    """See the module. The ranks meet at the file `store_path`, or at an address. `incarnation` is the first half of
    every version that it makes: set it, by what the queue's ledger says, before the first one."""

    def __init__(self, run: RunFolder, config: Config, rank: int, store_path: Path) -> None:
        self._run = run
        self._config = config
        self.incarnation = 0
        self._rank = rank
        self._reader = SegmentReader(run.path)
        self._store_path = store_path
        self._meeting: Path | Meeting = store_path
        self._versions: VersionWriter | None = None
        self._room = DiskSpace()

    @property
    def step(self) -> int:
        """The step whose weights it holds."""
        return self._backend.steps_done

    @property
    def version(self) -> Version:
        return Version(self.incarnation, self.step)

    @property
    def _built_versions(self) -> VersionWriter:
        assert self._versions is not None, "build comes first"
        return self._versions

    # ---- start

    def meet(self, address: str) -> str:
        """Rank 0 of ranks on several machines: have the others come to this address of its own. Returns the place that
        they are told."""
        meeting = listen(address, timedelta(seconds=self._config.deadlines.step_s))
        self._meeting = meeting
        return meeting.place

    def come_to(self, place: str, address: str) -> None:
        """The other ranks: meet there, being reached at `address`."""
        self._meeting = Meeting(place, address)

    def build(self, resume: bool = True) -> dict[str, Any]:
        """Collective. Load the model and, to `resume`, the newest verified checkpoint if there is one.

        Returns `checkpoint` (its step, or None), `skipped` (why newer ones were passed over), and `longest_prompt`
        (tokens, over the task's training and held-out prompts).
        """
        torch.set_num_threads(self._config.learner.threads)
        if self._rank == 0:
            prepare_model_folder(self._config.model, self._config.seed, model_folder(self._run.path, self._config))
        learner = self._config.learner
        self._ranks = BACKENDS[learner.backend](self._config, self._run.path, self._rank, self._meeting)
        self._group = self._ranks.group
        self._group.wait_for_first()
        model = load_model(model_folder(self._run.path, self._config), self._config.model.dtype)
        self._load_task(model.config.get_text_config().max_position_embeddings)
        self._token_log = TokenLog(self._run.tokens_path, self._config, self._ranks.row_rank)
        trained = self._ranks.build(model, self._token_log.watch)
        self._policy, self._backend, self._referred_at, self._supervised = trained
        self._versions = VersionWriter(self._run, self._config, self._rank, self._policy)
        self._auxiliary = self._make_auxiliary_model()
        found = self._load_newest() if resume else {}
        return {**found, "longest_prompt": self._longest_prompt}

    def expect_replicas(self, count: int) -> None:
        """So many replicas follow the versions from now on. Nothing is done before it is built."""
        if self._versions is not None:
            self._versions.expect_replicas(count)

    def warm_up(self, report: Callable[[WarmupProgress], None]) -> None:
        """Collective. The supervised phase, if the configuration has one."""
        settings = self._config.warmup
        task, tokenizer = self._task, self._tokenizer
        if not settings.max_steps:
            return
        if not is_demonstrated(task):
            raise ConfigError(
                f"task {task.name!r} has no demonstrations to warm up on; set warmup.max_steps = 0, or give it a "
                "method demonstration(prompt)"
            )
        folder = model_folder(self._run.path, self._config)
        max_length = limits.longest_row(self._config, self._longest_prompt)
        with (
            self._supervised(nll_loss, warmup_optimizer(settings), settings.max_steps) as backend,
            warm_up.warm_up_parts(self._config, folder, max_length, backend, task, tokenizer) as parts,
        ):
            Warmup(
                backend,
                settings,
                task,
                tokenizer,
                row_rank=self._ranks.row_rank,
                hidden_size=self._policy.hidden_size,
                evaluate=parts.score,
                held_apart=warm_up.items_held_apart(task),
                seed=self._config.seed,
                micro_batch_tokens=self._config.learner.micro_batch_tokens,
                shares=num_shares(self._config),
                demonstrations=parts.demonstrations,
            ).run(report)
        torch.set_num_threads(self._config.learner.threads)
        self._export(start_folder(self._run.path, self._config))
        self._group.wait_for_first()
        self._auxiliary = None  # two at once would take the memory of two
        self._auxiliary = self._make_auxiliary_model()

    # ---- a step

    def plan(self, lease: Lease | None, otherwise: StepPlan = STOP) -> StepPlan:
        """Collective. The plan that rank 0 makes of its lease, on every rank; what rank 0 says `otherwise`. The others
        wait here for as long as rank 0 has no lease."""
        plan = otherwise if lease is None else make_plan(lease, self._config, self._policy.hidden_size)
        if self._group.world_size == 1:
            return plan
        return decode(self._group.broadcast_bytes(encode(plan) if self._rank == 0 else None))

    def train(self, plan: StepPlan, timer: StepTimer) -> dict[str, float]:
        """Collective. One step on this rank's part of the batch; metrics of the whole batch."""
        learner = self._config.learner
        shares = shares_of(plan, self._ranks.row_rank.data_rank, self._config)
        with timer.phase("read"):
            read = [[(self._rows(plan, share), share) for share in mini_batch] for mini_batch in shares]
        paid: dict[str, float] = {}
        if learner.algorithm.kl_in_rows:
            referred = self._referred()
            assert referred is not None, "whoever pays for a divergence has a reference"
            with timer.phase("forward_backward"):
                plan, paid = pay_divergence(plan, list(chain(*read)), self._config, referred, self._ranks)
            judged = iter(chain(*shares_of(plan, self._ranks.row_rank.data_rank, self._config)))
            read = [[(rows, next(judged)) for rows, _ in mini_batch] for mini_batch in read]
        with timer.phase("pack"):
            sources = Sources([writer_of(frame.path) for frame in plan.frames])
            packs = [[self._packs(plan.step, *part, sources) for part in mini_batch] for mini_batch in read]
        totals = map(Denominators, plan.total_tokens, plan.total_rows)
        mini_batches = list(map(MiniBatch, packs, totals))
        parts = [[Part(rows, share.place) for rows, share in mini_batch] for mini_batch in read]
        self._token_log.begin(packs)
        with timer.phase("forward_backward"):
            metrics = self._step(mini_batches, parts)
        self._token_log.write(plan, read, packs)
        metrics.pop("time/forward_backward")
        timer.move("forward_backward", "optimizer", metrics.pop("time/optimizer"))
        return {**sources.named(metrics), **paid}

    def _step(self, mini_batches: list[MiniBatch], parts: list[list[Part]]) -> dict[str, float]:
        epochs = self._config.learner.ppo_epochs
        try:
            if self._auxiliary is None:
                return self._backend.step_batch(mini_batches, epochs)
            return step_of_both(self._backend, self._auxiliary, mini_batches, parts, epochs)
        except NonFiniteError as error:
            raise with_its_row(error, self._backend, mini_batches, parts, self._referred()) from error

    def snapshot_weights(self) -> WeightSnapshot:
        """A copy of this rank's part of what a version holds, in its number format. The next one is written over it."""
        return WeightSnapshot(self.version, self._policy.snapshot())

    def wait_to_publish(self) -> None:
        """Collective, in the thread of `publish` and before it. The others wait until rank 0 has room for a version."""
        self._group.wait_for_first(beside=True)

    def publish(self, snapshot: WeightSnapshot, span: Callable[[str], Span] = untold) -> Written | None:
        """Collective. Write the weights of a snapshot as its version to shared memory. None on the ranks that only take
        part. May run beside the other methods, in a thread of its own, until the next snapshot.

        span: what to enter while it does the part of that name (`gather`, `write`, `encode`).
        """
        return self._built_versions.publish(snapshot, span)

    def lack_of_memory(self) -> str:
        """Why shared memory has no room for a further version, in words; "" when it has."""
        return self._built_versions.lack(self.incarnation)

    def unlink(self, versions: list[Version]) -> None:
        self._built_versions.unlink([Version(*version) for version in versions])

    def keep_only(self, versions: list[Version]) -> None:
        """Give back the memory of all other versions, those of an earlier learner too."""
        self._built_versions.keep_only([Version(*version) for version in versions])

    def weight_digest(self) -> str:
        """Collective. The digest that a manifest of the weights carries."""
        return weights_digest(self._policy.iter_version())

    # ---- what stays

    @property
    def pause(self) -> str:
        """What a full disk keeps a save waiting for, in words; "" while it does not wait."""
        return self._room.pause

    def state_bytes(self) -> int:
        """Bytes of the tensors of a checkpoint: what is trained and its moments."""
        return self._backend.state_bytes + (0 if self._auxiliary is None else self._auxiliary.state_bytes)

    def save(self) -> None:
        """Collective. One checkpoint, committed when this returns."""
        snapshot = self.snapshot()
        if snapshot is not None:
            self.commit(snapshot)

    def snapshot(self) -> checkpoint.Snapshot | None:
        """Collective. A copy of everything that a resumed run needs, which later steps leave as it is. The others wait
        here until rank 0 has written the one before and has room for this one.

        None on the ranks that only take part.
        """
        self._group.wait_for_first()
        tensors = self._state_tensors()
        if self._rank != 0:
            for _ in tensors:
                pass
            return None
        return checkpoint.Snapshot(
            self.version,
            tensors,
            ledger_position=self.step,
            extra={**self._state_extra(), "published": self._built_versions.published},
        )

    def commit(self, snapshot: checkpoint.Snapshot) -> int:
        """Make a snapshot an atomic checkpoint. May run beside the other methods, in a thread of its own.

        Returns the lowest step that a resume could begin with.
        """
        folder, settings = self._run.checkpoints_path, self._config.checkpoint
        checkpoint.save(folder, snapshot, keep=settings.keep, byte_budget=settings.byte_budget, room=self._room)
        return oldest_step(folder)

    def export(self) -> None:
        """Collective. The weights as a Hugging Face folder. The others wait here until rank 0 has put away the rest."""
        self._group.wait_for_first()
        self._export(self._run.export_path)

    def close(self) -> None:
        """Leave the group and take the published versions back. The policy goes with it."""
        versions, self._versions = self._versions, None
        if versions is not None:
            versions.close()
        del versions
        self._ranks.close()
        # The group's threads end with the last reference to it, and the policy holds some. A thread that still puts its
        # last tensor away when the interpreter ends would abort the process.
        for held in ("_backend", "_auxiliary", "_referred_at", "_supervised", "_policy", "_group", "_ranks"):
            vars(self).pop(held, None)
        gc.collect()
        if self._rank == 0:
            self._store_path.unlink(missing_ok=True)

    # ---- inside

    def _export(self, folder: Path) -> None:
        weights = self._backend.iter_hf_weights()
        if self._rank == 0:
            export_hf(snapshot(weights), model_folder(self._run.path, self._config), folder)
        for _ in weights:  # the others only take part
            pass

    def _load_task(self, context: int) -> None:
        folder = model_folder(self._run.path, self._config)
        self._tokenizer = load_tokenizer(folder)
        self._task, self._longest_prompt = load_task(self._config, folder, context)

    def _make_auxiliary_model(self) -> AuxiliaryModel | None:
        return make_auxiliary_model(self._run.path, self._config, self._ranks, self._tokenizer, self._referred_at)

    def _referred(self) -> Logprobs | None:
        """Log-probs under the reference, at the temperature of rollouts; None where there is none."""
        temperature = self._config.rollout.sampling.temperature
        return None if self._referred_at is None else partial(self._referred_at, temperature=temperature)

    def _load_newest(self) -> dict[str, Any]:
        search = checkpoint.find_newest(self._run.checkpoints_path)
        found = search.newest
        if found is None:
            return {"checkpoint": None, "skipped": list(search.skipped)}
        self._backend.load_state(found.tensor, found.extra["backend"])
        if self._auxiliary is not None:
            self._auxiliary.load_state(found.tensor, found.extra.get(self._auxiliary.name))
        checkpoint.prove_loaded(found, self._state_tensors())
        self._built_versions.published = found.extra.get("published")
        return {"checkpoint": found.version.step, "skipped": list(search.skipped)}

    def _state_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self._backend.state_tensors()
        if self._auxiliary is not None:
            yield from self._auxiliary.state_tensors()

    def _state_extra(self) -> dict[str, Any]:
        auxiliary = {} if self._auxiliary is None else {self._auxiliary.name: self._auxiliary.state_extra()}
        return {"backend": self._backend.state_extra(), **auxiliary}

    def _packs(self, step: int, rows: RolloutRows, share: Share, sources: Sources) -> list[PackedBatch]:
        learner = self._config.learner
        skip_zero = learner.algorithm.learns_from_advantages_alone
        packs = pack(rows, share.advantages, learner.micro_batch_tokens, step=step, skip_zero=skip_zero)
        return sources.mark(packs, share.frame_index)

    def _rows(self, plan: StepPlan, share: Share) -> RolloutRows:
        used = np.unique(share.frame_index)
        frames = [self._reader.read(plan.frames[index]) for index in used]
        self._reader.forget_copies()
        return rollout_rows(
            frames,
            np.searchsorted(used, share.frame_index),
            share.row,
            share.group,
            share.sample_index,
            share.rewards,
            share.valid,
        )
