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

import numpy as np
import torch
from transformers import PretrainedConfig, PreTrainedModel

from streamrl.engines.torch.admission import PREFILL_TOKENS, admit, find_faults
from streamrl.engines.torch.arrangement import arrange
from streamrl.engines.torch.attention import round_up
from streamrl.engines.torch.decoder import Decoder
from streamrl.engines.torch.families import describe
from streamrl.engines.torch.kernel_decoder import KernelDecoder
from streamrl.engines.torch.kv import KvCache
from streamrl.engines.torch.passes import Pass, to_device
from streamrl.engines.torch.plan import Segment, plan_pass
from streamrl.engines.torch.sampling import PLAIN, Draws, SamplingRows, Truncation
from streamrl.engines.torch.selftest import prove_batch_invariance
from streamrl.engines.torch.slots import SlotTable
from streamrl.engines.torch.weights import FusedWeights
from streamrl.errors import ComponentError, ConfigError
from streamrl.partials import ended_as, unstarted
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

DETERMINISTIC_ROWS = 4
"""Least rows of a product in deterministic mode: with fewer, matrix libraries take another kernel, whose last
bits differ (measured for 1, 2 and 3 rows, on AVX2 and on AVX-512; 4 to 2,100 rows were equal)."""


class TorchEngine:
    """An `Engine` (see `streamrl.engines.base`) that samples with torch.

    model: a causal LM, or its configuration with `tensors` (Hugging Face names). The engine copies the weights.
    slots: requests decoded at once; fewer when `kv_bytes` holds fewer (see `slots` and `stats`).
    max_length: tokens of prompt and completion together that a request may have.
    dtype: of weights, activations and KV cache; that of the weights by default.
    compiled: whether float32 on a CPU runs by compiled kernels (`kernels`); all else runs by torch alone.

    Raises ConfigError for a model it cannot run exactly, for a `max_length` over the model's context, and for
    `kv_bytes` that do not hold one request.

    Example:
        engine = TorchEngine(model, Version(0, 0), slots=64, max_length=256, kv_bytes=2**28)
        results = engine.generate(requests)
    """

    token_steps = True

    @torch.inference_mode()
    def __init__(
        self,
        model: PreTrainedModel | PretrainedConfig,
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
    ) -> None:
        config, tensors = _weights_of(model, tensors)
        self._shape = describe(config)
        self._device = _usable_device(device)
        self._dtype = dtype or tensors["model.embed_tokens.weight"].dtype
        self._max_length = max_length
        if max_length > self._shape.context:
            raise ConfigError(
                f"requests of {max_length} tokens do not fit the model's context of {self._shape.context}: "
                "shorten prompts or rollout.sampling.max_new_tokens"
            )
        self._cache = KvCache(
            self._shape,
            slots=slots,
            max_length=max_length,
            kv_bytes=kv_bytes,
            dtype=self._dtype,
            device=self._device,
        )
        self._min_rows = DETERMINISTIC_ROWS if deterministic else 1
        self._decoder = self._new_decoder(config, compiled)
        self._weights = self._new_weights()
        self._weights.copy_from(tensors)
        self._spare: FusedWeights | None = None
        self._version = version
        self._drained: tuple[Version, FusedWeights] | None = None
        self._stale_cache = False
        self._table = SlotTable(self._cache.slots, max_length)
        # What stays as long as the same rows run.
        self._sampling: SamplingRows | None = None
        self._draws: Draws | None = None
        self._pass: Pass | None = None
        self._chosen = torch.zeros(0, dtype=torch.long, device=self._device)
        self._waiting: deque[GenerationRequest] = deque()
        self._ended: list[GenerationResult] = []
        self._generated = 0
        self._finished = 0
        self._closed = False

    def _new_decoder(self, config: PretrainedConfig, compiled: bool) -> Decoder:
        shape, length, rows = self._shape, self._max_length, self._min_rows
        if compiled and self._device.type == "cpu" and self._dtype is torch.float32:
            return KernelDecoder(config, shape, max_length=length, min_rows=rows)
        return Decoder(config, shape, max_length=length, dtype=self._dtype, device=self._device, min_rows=rows)

    def _new_weights(self) -> FusedWeights:
        return FusedWeights(self._shape, self._dtype, self._device)

    def _next_weights(self, tensors: Mapping[str, torch.Tensor] | FusedWeights, *, beside: bool) -> FusedWeights:
        """A set of these tensors: over their memory on a CPU, else copied over the set that serves, or beside it."""
        prepared = self.prepare(tensors) if isinstance(tensors, Mapping) else tensors
        if isinstance(prepared, FusedWeights):
            return prepared
        if beside:
            self._spare = self._spare or self._new_weights()
        room = self._spare if beside and self._spare is not None else self._weights
        room.copy_from(prepared)
        return room

    @property
    def version(self) -> Version:
        return self._version

    @property
    def slots(self) -> int:
        """Requests decoded at once: what was asked for, or what `kv_bytes` holds."""
        return self._cache.slots

    @property
    def has_work(self) -> bool:
        return bool(self._table.running or self._waiting or self._ended or self._drained)

    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        self._check_open()
        faults = find_faults(requests, self._max_length, self._shape.vocab_size)
        for place, request in enumerate(requests):
            if place in faults:
                self._ended.append(unstarted(request, FinishReason.ERROR, faults[place]))
            elif (reason := ended_as(request)) is not None:
                self._ended.append(unstarted(request, reason))
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
    def prepare(self, tensors: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor] | FusedWeights:
        """On a CPU the set that is going to serve, laid over the memory of `tensors`; elsewhere the tensors."""
        if self._device.type == "cpu":
            return FusedWeights.over(self._shape, self._dtype, tensors)
        return tensors

    @torch.inference_mode()
    def load_weights(
        self, tensors: Mapping[str, torch.Tensor] | FusedWeights, version: Version, mode: UpdateMode
    ) -> None:
        """See `Engine.load_weights`. Raises ValueError naming the tensor that is missing, unknown, or of a wrong
        shape or dtype. A load replaces a drained one that is still pending. On a CPU it serves from the memory of
        `tensors`, wherever they lie in it as the decoder needs them, and copies the rest; elsewhere it copies all."""
        self._check_open()
        if mode is UpdateMode.DRAIN and self._table.running:
            self._drained = version, self._next_weights(tensors, beside=True)
            return
        self._weights = self._next_weights(tensors, beside=False)
        self._drained = None
        self._version = version
        self._table.begin_version(version)
        self._stale_cache |= mode is UpdateMode.RECOMPUTE

    @torch.inference_mode()
    def step(self) -> list[GenerationResult]:
        self._check_open()
        results, self._ended = self._ended, []
        if self._stale_cache:
            self._rebuild_cache()
        segments = self._fill_slots()
        if self._table.num_rows:
            results += self._sample_row_tokens(segments)
        self._finish_drain()
        self._finished += len(results)
        return results

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
        return self._table.partials(least, among)

    def self_test(self) -> None:
        """Prove on this machine, with these weights, that results do not depend on the batch. To be called once,
        while idle, by whoever promises `deterministic`. Raises ComponentError that names what differed."""
        if self.has_work:
            raise ComponentError("torch engine, self-test: requests are running; test before the first one")
        counters = self._generated, self._finished
        prove_batch_invariance(self, vocab_size=self._shape.vocab_size, max_length=self._max_length)
        self._generated, self._finished = counters

    def stats(self) -> EngineStats:
        self._check_open()
        return EngineStats(
            running=self._table.running,
            waiting=len(self._waiting),
            generated_tokens=self._generated,
            finished_requests=self._finished,
            kv_bytes_used=self._table.used_tokens() * self._cache.token_bytes,
            kv_bytes_total=self._cache.total_bytes,
            version=self._version,
        )

    def close(self) -> None:
        """Free cache and weights. Only `close` may be called afterwards."""
        self._closed = True
        self.__dict__.pop("_cache", None)
        self.__dict__.pop("_weights", None)
        self._spare = None

    def _check_open(self) -> None:
        if self._closed:
            raise ComponentError("torch engine: it was closed; make a new one")

    def _finish_drain(self) -> None:
        """Swap in a drained update once nothing runs under the old version."""
        if self._drained is None or self._table.running:
            return
        if self._spare is not None:
            self._spare = self._weights
        self._version, self._weights = self._drained
        self._drained = None

    def _fill_slots(self) -> tuple[Segment, ...]:
        """Start what fits into the free slots, put the rows in order, return the prompts to compute."""
        table = self._table
        starts = self._drained is None and bool(self._waiting) and table.running < self.slots
        if not starts and table.running == table.num_rows:
            return ()
        room = self.slots - table.running if starts else 0
        admission = admit(self._waiting, room, self._version, self._min_rows == DETERMINISTIC_ROWS)
        lengths, in_order = table.length[: table.num_rows], self._decoder.sorts_rows
        sources, targets, places = arrange(lengths, table.taken(), admission.lengths(), in_order=in_order)
        self._move(sources, targets)
        self._sampling = self._draws = self._pass = None
        if not len(places):
            return ()
        table.assign(places, admission.requests, admission.lengths(), self._version)
        return admission.segments(places)

    def _move(self, sources: LongArray, targets: LongArray) -> None:
        if len(sources):
            length = round_up(int(self._table.length[sources].max()))
            self._cache.move(to_device(sources, self._device), to_device(targets, self._device), length)
        self._table.move(sources, targets)

    def _sample_row_tokens(self, segments: Sequence[Segment]) -> list[GenerationResult]:
        """One pass and one token for every running row."""
        table = self._table
        if self._pass is None or not self._pass.decodes_only:
            self._pass = self._decoder.begin(plan_pass(*table.last_tokens(), segments, self._min_rows), self._cache)
        else:
            self._decoder.advance(self._pass, self._chosen)
        logits = self._decoder.forward(self._weights, self._pass, self._cache)
        assert logits is not None, "a pass with rows gives logits"
        if self._sampling is None or self._draws is None:
            self._sampling = self._sampling_rows()
            self._draws = Draws(table.stream[: table.num_rows], table.token_index(), self._device)
        self._chosen, drawn = self._decoder.choose(logits, self._sampling, self._draws.next())
        chosen, logprobs = self._chosen.cpu().numpy(), drawn.cpu().numpy()
        broken = np.flatnonzero(~np.isfinite(logprobs))
        if broken.size:
            self._cache.clear(to_device(broken, self._device))
        self._generated += len(chosen) - broken.size
        known = table.reading()
        if known.any():
            # The next tokens of these rows are not those that were drawn: the pass cannot go on from them.
            self._pass = None
            self._generated -= int((known & np.isfinite(logprobs)).sum())
        return table.append(chosen, logprobs)

    def _rebuild_cache(self) -> None:
        """Compute keys and values of every running request again, under the weights that serve now. The last
        token is not in the cache yet: the next pass reads it."""
        self._stale_cache = False
        batch: list[Segment] = []
        tokens = 0
        for row in self._table.running_rows():
            ids = self._table.token_ids[row, : self._table.length[row] - 1]
            if batch and tokens + len(ids) > PREFILL_TOKENS:
                self._prefill(batch)
                batch, tokens = [], 0
            batch.append(Segment(ids, (row,)))
            tokens += len(ids)
        if batch:
            self._prefill(batch)

    def _prefill(self, segments: Sequence[Segment]) -> None:
        none: LongArray = np.zeros(0, dtype=np.int64)
        plan = plan_pass(none, none, segments, self._min_rows)
        self._decoder.forward(self._weights, self._decoder.begin(plan, self._cache), self._cache)

    def _sampling_rows(self) -> SamplingRows:
        table, device = self._table, self._device
        rows = slice(table.num_rows)
        if table.plain[rows].all():
            return PLAIN
        temperature, top_k = table.temperature[rows], table.top_k[rows]
        top_p, min_p = table.top_p[rows], table.min_p[rows]
        greedy = temperature == 0
        cut = np.flatnonzero(~greedy & ((top_k > 0) | (top_p < 1) | (min_p > 0)))
        divisor = np.where(greedy, np.float32(1), temperature)
        return SamplingRows(
            temperature=to_device(divisor, device) if (divisor != 1).any() else None,
            greedy=to_device(greedy, device) if greedy.any() else None,
            all_greedy=bool(greedy.all()),
            truncation=Truncation(
                rows=to_device(cut, device),
                top_k=to_device(top_k[cut], device) if top_k[cut].any() else None,
                top_p=to_device(top_p[cut], device) if (top_p[cut] < 1).any() else None,
                min_p=to_device(min_p[cut], device) if min_p[cut].any() else None,
            )
            if cut.size
            else None,
        )


def _weights_of(
    model: PreTrainedModel | PretrainedConfig, tensors: Mapping[str, torch.Tensor] | None
) -> tuple[PretrainedConfig, Mapping[str, torch.Tensor]]:
    if isinstance(model, PreTrainedModel):
        return model.config, model.state_dict() if tensors is None else tensors
    if tensors is None:
        raise ConfigError("the torch engine got a configuration without weights: pass `tensors`, or a model")
    return model, tensors


def _usable_device(name: str) -> torch.device:
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"rollout.device is {name!r}, but torch finds no CUDA device on this machine: set it to 'cpu'"
        )
    return device
