"""The embedded engine: continuous batching over a Hugging Face decoder, in process, on CPU or CUDA.

Guaranteed:
* A request's tokens are sampled under one version each, and the result says at which token a version begins.
* With `deterministic`, ids and log-probs of a request are equal to the bit whatever shares its batch and whenever
  it arrives, among requests sampled under one version on one machine; `self_test` proves it there.
* KV memory is allocated once and stays within `kv_bytes`; a slot that frees is filled before the next token.
* A number that is not finite ends its request as ERROR and reaches no other request.
* A request with tokens `so_far` goes on behind them: their keys and values are computed under the version that serves.
  With `deterministic`, if that version sampled them all, they are read one by one, as they were sampled: other ways to
  read them round in other ways. That takes as long as sampling them did, and the bits are those of no interruption.

Not known here: text, groups, rewards, and whether a version is newer than another (whoever loads it decides). The
engine sets no thread count: `deterministic` asks for `torch.set_num_threads(1)` by the process that owns it.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import ClassVar

import numpy as np
import torch

from streamrl.engines.torch.admission import Reading, Rest, Segment, admit, find_faults, most_length
from streamrl.engines.torch.arrangement import arrange
from streamrl.engines.torch.batch_invariance import prove_batch_invariance
from streamrl.engines.torch.kept import KeptPrefixes
from streamrl.engines.torch.ladder import Ladder
from streamrl.engines.torch.logits_processors.constrained import ConstrainedRequests, Grammars
from streamrl.engines.torch.logprobs.asked import AskedLogprobs
from streamrl.engines.torch.paths import ModelPath, path_for, routes_of
from streamrl.engines.torch.products import RowProducts
from streamrl.engines.torch.serving import Model, ServingWeights, WeightSet, tensors_of
from streamrl.engines.torch.slots import SlotTable
from streamrl.errors import BatchDependenceError, ComponentError, ConfigError
from streamrl.models.gpu import explained_out_of_memory, usable_device
from streamrl.scheduling.partial_rollouts import ended_as, unstarted
from streamrl.types import (
    EngineStats,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    LongArray,
    PartialTokens,
    UpdateMode,
    Version,
)


class TorchEngine:
    """An `Engine` (see `streamrl.engines.base`) that samples with torch.

    model: a causal LM, or its configuration with `tensors` (Hugging Face names). The engine copies the weights.
    slots: requests decoded at once; fewer when `kv_bytes` holds fewer (see `slots` and `stats`).
    max_length: tokens of prompt and completion together that a request may have.
    dtype: of weights, activations and KV cache; that of the weights by default.
    compiled: whether a GPU runs captured graphs of our kernels (`cuda`), and float32 on a CPU compiled ones
    (`eager.kernels`); without it all runs by torch's own operators.
    grammars: over the model's tokens, for requests that have one; without it those are refused. record_routes: results
    say which experts each token went to.
    products: how rows are multiplied with `deterministic`, and what to descend to; by default the ways that hold on
    this machine, the fastest first.

    Raises ConfigError for a model it cannot run exactly, for a `max_length` over the model's context, and for
    `kv_bytes` that do not hold one request.

    Example:
        engine = TorchEngine(model, Version(0, 0), slots=64, max_length=256, kv_bytes=2**28)
        results = engine.generate(requests)
    """

    token_steps: ClassVar[bool] = True

    @torch.inference_mode()
    def __init__(
        self,
        model: Model,
        version: Version,
        *,
        slots: int,
        max_length: int,
        kv_bytes: int,
        tensors: Mapping[str, torch.Tensor] | None = None,
        device: str = "cpu",
        deterministic: bool = True,
        dtype: torch.dtype | None = None,
        compiled: bool = True,
        products: Sequence[RowProducts] = (),
        grammars: Grammars | None = None,
        record_routes: bool = False,
    ) -> None:
        tensors = tensors_of(model, tensors)
        self._dtype = dtype or next(one.dtype for one in tensors.values() if one.is_floating_point())
        self._device = usable_device(device, self._dtype, "rollout.device")
        self._path = path = self._choose_path(model, compiled)
        self._routes = routes_of(path) if record_routes else None
        self._max_length = max_length
        if max_length > path.context:
            raise ConfigError(
                f"requests of {max_length} tokens do not fit the model's context of {path.context}: "
                "shorten prompts or rollout.sampling.max_new_tokens"
            )
        self._deterministic = deterministic
        in_place = self._device.type != "cpu" or path.runs_graphs
        with explained_out_of_memory("the model", "free the GPU, or take a smaller model or a larger GPU"):
            self._serving = ServingWeights(path.new_weights, path.weights_over, self._device, in_place=in_place)
            self._serving.current.copy_from(tensors)
        self._size = {"slots": slots, "max_length": max_length, "kv_bytes": kv_bytes}
        self._ladder = Ladder(path.shapes, self._dtype, self._device, products) if deterministic else None
        self._make_runner()
        self._version = version
        self._drained: tuple[Version, WeightSet] | None = None
        self._stale_cache = False
        self._waiting: deque[GenerationRequest] = deque()
        self._ended: list[GenerationResult] = []
        self._generated = self._finished = self._kept_tokens = 0
        self._asked, self._constrained = AskedLogprobs(), ConstrainedRequests(grammars, path.vocab_size)
        self._closed = False

    def _make_runner(self) -> None:
        """Run as the ladder says from now on, with an empty cache."""
        if runner := self.__dict__.pop("_runner", None):
            runner.close()
        products = None if self._ladder is None else self._ladder.products
        with explained_out_of_memory("the KV cache with the passes", "lower rollout.kv_bytes or rollout.slots"):
            self._runner = self._path.runner(self._serving.current, **self._size, products=products)
        self._table = SlotTable(self._runner.slots, self._max_length, self._routes)
        self._kept = KeptPrefixes(self._runner.slots) if self._runner.reads_rests else None

    def _choose_path(self, model: Model, compiled: bool) -> ModelPath:
        return path_for(model, self._dtype, self._device, compiled=compiled)

    @property
    def version(self) -> Version:
        return self._version

    @property
    def slots(self) -> int:
        """Requests decoded at once: what was asked for, or what `kv_bytes` holds."""
        return self._runner.slots

    @property
    def has_work(self) -> bool:
        return bool(self._table.running or self._waiting or self._ended or self._drained)

    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        self._check_open()
        faults = find_faults(requests, self._max_length, self._path.vocab_size)
        for place, request in enumerate(requests):
            reason = FinishReason.ERROR if place in faults else ended_as(request)
            fault = faults.get(place, "") if reason else self._constrained.fault_of(request)
            if reason or fault:
                self._ended.append(unstarted(request, reason or FinishReason.ERROR, fault))
            else:
                self._waiting.append(request)

    def abort(self, request_ids: Iterable[str]) -> None:
        self._check_open()
        gone = set(request_ids)
        rows = self._table.find(gone)
        if rows:
            self._ended += self._table.take(rows, [FinishReason.ABORT] * len(rows), [""] * len(rows))
        waiting, self._waiting = self._waiting, deque()
        for request in waiting:
            if request.request_id in gone:
                self._ended.append(unstarted(request, FinishReason.ABORT))
            else:
                self._waiting.append(request)
        self._finish_drain()

    @torch.inference_mode()
    def prepare(self, tensors: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor] | WeightSet:
        """On a CPU the set that is going to serve, laid over the memory of `tensors`; on a GPU a copy of it there, or
        the tensors where there is no memory for a second set."""
        return self._serving.prepare(tensors)

    @torch.inference_mode()
    def load_weights(self, tensors: Mapping[str, torch.Tensor] | WeightSet, version: Version, mode: UpdateMode) -> None:
        """See `Engine.load_weights`. Raises ValueError naming the tensor that is missing, unknown, or of a wrong
        shape or dtype. A load replaces a drained one that is still pending. On a CPU it serves from the memory of
        `tensors`, wherever they lie in it as the decoder needs them, and copies the rest; elsewhere it copies all."""
        self._check_open()
        if mode is UpdateMode.DRAIN and self._table.running:
            self._replace_drained((version, self._serving.hold(tensors)))
            return
        # What a pass in flight draws is of the version that serves now.
        self._settle()
        self._serving.take(tensors)
        self._replace_drained(None)
        self._version = version
        self._forget_kept()
        self._table.begin_version(version)
        self._stale_cache |= mode is UpdateMode.RECOMPUTE

    def _replace_drained(self, drained: tuple[Version, WeightSet] | None) -> None:
        if self._drained is not None:
            self._serving.give_back(self._drained[1])
        self._drained = drained

    @torch.inference_mode()
    def step(self) -> list[GenerationResult]:
        self._check_open()
        results, self._ended = self._ended, []
        if not self._runner.in_flight:
            self._begin_pass()
        if self._runner.in_flight:
            if self._goes_on():
                self._runner.go_on(self._serving.current)
            results += self._collect()
            if self._runner.runs_ahead and not self._runner.in_flight:
                self._begin_pass()
        self._finish_drain()
        self._finished += len(results)
        self._constrained.finish(results)
        return self._asked.finish(results)

    def generate(self, requests: Sequence[GenerationRequest]) -> list[GenerationResult]:
        """Run requests to their end; results in the order of `requests`. Ids must be unique, the engine idle."""
        if self.has_work:
            raise ComponentError("torch engine, generate: other requests are running; use submit and step")
        self.submit(requests)
        results: dict[str, GenerationResult] = {}
        while self.has_work:
            results |= {result.request_id: result for result in self.step()}
        return [results[request.request_id] for request in requests]

    def interrupt(self) -> None:
        """Nothing: no step waits."""

    def partials(self, least: int, among: Collection[str] | None = None) -> list[PartialTokens]:
        self._check_open()
        return self._asked.tell(self._table.partials(least, among))

    def self_test(self, *, required: bool = True) -> None:
        """Prove on this machine, with these weights, that results do not depend on the batch, and multiply rows in the
        fastest way of which that is true. To be called once, while idle, by whoever promises `deterministic`. Where it
        is true of none: raises BatchDependenceError that names what differed, or, unless `required`, goes on without
        the promise (see `stats().arithmetic`)."""
        if self.has_work:
            raise ComponentError("torch engine, self-test: requests are running; test before the first one")
        counters = self._generated, self._finished
        while self._ladder is not None and (found := self._dependence()) is not None:
            self._ladder.descend(found, required)
            self._deterministic = self._ladder.holds
            self._make_runner()
            if not self._deterministic:
                break
        self._generated, self._finished = counters

    def _dependence(self) -> BatchDependenceError | None:
        """What the proof finds."""
        try:
            prove_batch_invariance(self, vocab_size=self._path.vocab_size, max_length=self._max_length)
        except BatchDependenceError as found:
            return found
        return None

    def stats(self) -> EngineStats:
        self._check_open()
        return EngineStats(
            running=self._table.running,
            waiting=len(self._waiting),
            generated_tokens=self._generated,
            finished_requests=self._finished,
            kv_bytes_used=self._runner.used_bytes(self._table),
            kv_bytes_total=self._runner.total_bytes,
            version=self._version,
            kept_tokens=self._kept_tokens,
            arithmetic=None if self._ladder is None else self._ladder.arithmetic,
        )

    def close(self) -> None:
        """Free cache and weights. Only `close` may be called afterwards."""
        self._closed = True
        if runner := self.__dict__.pop("_runner", None):
            runner.close()
        self.__dict__.pop("_serving", None)
        self._drained = None

    def _check_open(self) -> None:
        if self._closed:
            raise ComponentError("torch engine: it was closed; make a new one")

    def _finish_drain(self) -> None:
        """Swap in a drained update once nothing runs under the old version."""
        if self._drained is None or self._table.running:
            return
        self._settle()
        self._version, weights = self._drained
        self._drained = None
        self._forget_kept()
        self._serving.take(weights)

    def _forget_kept(self) -> None:
        """Keys and values are of the version that serves, or computed again."""
        if self._kept is not None:
            self._kept.clear()
            self._runner.forget(self._kept.take_freed())

    def _settle(self) -> None:
        """Collect what is in flight; what ends by it comes back from the next step."""
        while self._runner.in_flight:
            self._ended += self._collect()

    def _begin_pass(self) -> None:
        """Start the next pass from what the rows hold: with new requests in free rows, and their prompts."""
        self._runner.drop(self._table)
        if self._stale_cache:
            self._rebuild_cache()
        segments, rests = self._fill_slots()
        changes, failed = self._constrained.changes(self._table)
        if failed:
            self._ended += self._table.take(list(failed), [FinishReason.ERROR] * len(failed), list(failed.values()))
            self._runner.drop(self._table)
        if self._table.running:
            self._runner.begin(self._serving.current, self._table, segments, rests, changes)

    def _starts(self) -> bool:
        """Whether waiting requests are to start now."""
        if self._drained is not None or not self._waiting:
            return False
        free, most = self.slots - self._table.running, most_length(self._waiting[0])
        if free and self._kept is not None:
            while self._runner.lacks(most) and self._kept.let_go_oldest():
                self._runner.forget(self._kept.take_freed())
        return self._runner.starts(free, len(self._waiting), most)

    def _goes_on(self) -> bool:
        """Whether the pass after the one in flight can be started before that one is read: the same rows go on, and
        read what it draws."""
        table, runner = self._table, self._runner
        if not runner.runs_ahead or self._stale_cache or self._constrained.change(table) or self._starts():
            return False
        return not table.reading().any() and not runner.packs(table.running, table.num_rows) and table.outlasts()

    def _fill_slots(self) -> tuple[tuple[Segment, ...], tuple[Rest, ...]]:
        """Start what fits into the free slots, put the rows in order, return what is to be read of it."""
        table, runner = self._table, self._runner
        starts = self._starts()
        if not starts and not runner.packs(table.running, table.num_rows):
            return (), ()
        room = self.slots - table.running if starts else 0
        budget, most = runner.budget(), runner.prefill_tokens
        reading = Reading(self._version, self._deterministic, self._kept)
        admission = admit(self._waiting, room, reading, budget, most)
        lengths, in_order = table.length[: table.num_rows], runner.sorts_rows
        sources, targets, places = arrange(lengths, table.taken(), admission.lengths(), in_order=in_order)
        kept = admission.kept(places)
        if self._kept is not None:
            self._kept.make_room(table.running + len(places))
            runner.forget(self._kept.take_freed())
        runner.move(table, sources, targets, kept)
        table.move(sources, targets)
        self._kept_tokens += sum(tokens for _, _, tokens in kept)
        if not len(places):
            return (), ()
        table.assign(places, admission.requests, admission.lengths(), self._version)
        self._asked.begin(admission.requests)
        runner.assign(admission, places)
        return admission.segments(places), admission.rests(places)

    def _collect(self) -> list[GenerationResult]:
        """The token of the oldest pass for every row that still runs. Returns what ends by it."""
        table = self._table
        running = table.taken()
        drawn = self._runner.collect(table)
        known = table.reading() & running
        self._generated += int(np.count_nonzero(running & ~known & np.isfinite(drawn.logprobs)))
        if known.any():
            # The next tokens of these rows are not those that were drawn: the next pass cannot go on from them.
            self._runner.restart()
        if self._asked or self._constrained:
            ids = table.request_ids()
            self._asked.note(ids, drawn, known)
            self._constrained.take({row: name for row, name in ids.items() if not known[row]}, drawn.token_ids)
        table.note_routes(drawn.routes)
        results = table.append(drawn.token_ids, drawn.logprobs)
        if self._kept is not None:
            self._keep(self._kept, np.flatnonzero(running & ~table.taken()), results)
        self._runner.drop(table)
        return results

    def _keep(self, kept: KeptPrefixes, ended: LongArray, results: Sequence[GenerationResult]) -> None:
        """Keep what requests that have just ended leave for the next ones of their conversations. ended: their rows."""
        for row, result in zip(ended.tolist(), results, strict=True):
            conversation, ids, opening = self._table.left_by(row)
            if conversation and result.finish_reason is not FinishReason.ERROR:
                slot = kept.place(conversation, ids, opening, self._table.num_rows)
                self._runner.forget(kept.take_freed())
                if slot is not None:
                    self._runner.keep(row, slot, len(ids))

    def _rebuild_cache(self) -> None:
        """Compute keys and values of every running request again, under the weights that serve now. The last
        token is not in the cache yet: the next pass reads it."""
        self._stale_cache = False
        table = self._table
        rows = table.running_rows()
        segments = [Segment(table.token_ids[row, : table.length[row] - 1], (row,)) for row in rows]
        self._runner.prefill(self._serving.current, segments)
