"""The learner on megatron-core: steps of one optimizer update or several over packs, on ranks in any layout.

Guarantees: losses, metrics, gradients and updates are those of one process with the whole model, up to rounding,
however layers, matrices, experts, rows and states are shared out. An update changes the weights only after the loss,
every metric and the gradient norm were found finite on all ranks. State goes out and comes in as whole tensors under
Hugging Face names, as that of the FSDP backend does, so neither the layout nor the backend need be that which saved.

Knows nothing of where packs come from, of versions, or of files.
"""

import base64
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import partial, reduce
from typing import Any, NamedTuple

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.transformer import TransformerConfig
from torch import nn
from transformers import PreTrainedModel

from streamrl.algorithms.aggregation import Denominators
from streamrl.clock import Clock, SystemClock
from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.learner import MegatronConfig, OptimizerConfig
from streamrl.errors import ConfigError, DataError, NonFiniteError
from streamrl.learner.batch.mini_batches import MiniBatch
from streamrl.learner.batch.packing import PackedBatch
from streamrl.learner.checkpoint.digest import weight_digest
from streamrl.learner.finite import require_finite
from streamrl.learner.megatron.cuts import Sizes
from streamrl.learner.megatron.families import FAMILIES, Family, family_of
from streamrl.learner.megatron.model import PolicyChunk
from streamrl.learner.megatron.optimizer import MASTER, MegatronAdamW, moments_of
from streamrl.learner.megatron.pipeline import even_packs, run_packs
from streamrl.learner.megatron.plan import make_plan
from streamrl.learner.megatron.policy import MegatronPolicy
from streamrl.learner.megatron.ranks import MegatronRanks
from streamrl.learner.megatron.settings import gradient_settings, layer_settings
from streamrl.learner.megatron.weights import ModelWeights
from streamrl.learner.objectives import Objective, policy_loss
from streamrl.learner.optim.schedule import learning_rate
from streamrl.learner.sums import Sums, mean_over_updates
from streamrl.learner.token_watch import TokenWatch


class _Update(NamedTuple):
    """One optimizer update: sums over the mini-batch, the gradient norm before clipping, seconds from it on."""

    sums: Sums
    grad_norm: float
    optimizer_s: float


class MegatronBackend:
    """`LearnerBackend` on megatron-core. All ranks of a data rank are given the same packs.

    Example:
        ranks = open_ranks(rank, store, MegatronLayout.of(config, world_size), device=device)
        backend = build(model, megatron=config, optimizer=..., algorithm=..., total_steps=100, temperature=1.0,
                        ranks=ranks)
        metrics = backend.step(packs, denominators)
    """

    def __init__(
        self,
        chunks: Sequence[nn.Module],
        weights: ModelWeights,
        objective: Objective,
        optimizer: OptimizerConfig,
        total_steps: int,
        *,
        ranks: MegatronRanks,
        policy: MegatronPolicy,
        adamw: MegatronAdamW,
        temperature: float = 1.0,
        uses_start: bool = False,
        clock: Clock | None = None,
    ) -> None:
        """chunks: of this rank, with their weights, which `weights` and `policy` bring together. adamw: over them, and
        begun with `optimizer`. objective, total_steps, temperature, uses_start: as `FsdpBackend` has them."""
        self.ranks = ranks
        self.policy = policy
        self._chunks = chunks
        self._weights = weights
        self._objective = objective
        self._config = optimizer
        self._total_steps = total_steps
        self._temperature = temperature
        self._uses_start = uses_start
        self._clock = clock or SystemClock()
        self._optimizer = adamw
        self._steps_done = 0
        self._updates_done = 0

    @property
    def steps_done(self) -> int:
        return self._steps_done

    @contextmanager
    def supervised(
        self, objective: Objective, optimizer: OptimizerConfig, total_steps: int
    ) -> Iterator["MegatronBackend"]:
        """Another training of the same weights, while the context is open; this one, which has taken no step, begins
        with the weights that it leaves."""
        self._optimizer.begin(optimizer)
        try:
            yield MegatronBackend(
                self._chunks,
                self._weights,
                objective,
                optimizer,
                total_steps,
                ranks=self.ranks,
                policy=self.policy,
                adamw=self._optimizer,
                clock=self._clock,
            )
        finally:
            self._optimizer.begin(self._config)

    def step(self, packs: Sequence[PackedBatch], total: Denominators) -> dict[str, float]:
        """As `LearnerBackend.step`, with the times of `step_batch`."""
        return self.step_batch([MiniBatch([packs], total)])

    def step_batch(self, mini_batches: Sequence[MiniBatch], epochs: int = 1) -> dict[str, float]:
        """As `LearnerBackend.step_batch`; the gradients of a mini-batch's shares are summed over the ranks together.
        Also returns `time/forward_backward` and `time/optimizer`, seconds."""
        started = self._clock.now()
        if self._uses_start and len(mini_batches) * epochs > 1:
            mini_batches = [self._with_start(mini_batch) for mini_batch in mini_batches]
        rate = learning_rate(self._steps_done, self._config, self._total_steps)
        self._optimizer.set_learning_rate(rate)
        updates = [self._update(mini_batch) for _ in range(epochs) for mini_batch in mini_batches]
        self._steps_done += 1
        optimizing = sum(update.optimizer_s for update in updates)
        return {
            **mean_over_updates([update.sums for update in updates], epochs),
            "grad/norm": sum(update.grad_norm for update in updates) / len(updates),
            "learner/lr": rate,
            "time/forward_backward": self._clock.now() - started - optimizing,
            "time/optimizer": optimizing,
        }

    def _with_start(self, mini_batch: MiniBatch) -> MiniBatch:
        """The same with the log-probs of the policy as it is: what the step's later updates are held close to."""
        shares = [
            [replace(pack, start_logprobs=before) for pack, before in zip(share, self.logprobs(share), strict=True)]
            for share in mini_batch.shares
        ]
        return MiniBatch(shares, mini_batch.total)

    def _update(self, mini_batch: MiniBatch) -> _Update:
        self._optimizer.clear_gradients()
        sums = self._backward(mini_batch)
        learned = self._clock.now()
        norm = self._optimizer.gradient_norm()
        place = f"learner step {self._steps_done + 1}, update {self._updates_done + 1}"
        try:
            require_finite({**sums.metrics(), "grad/norm": norm}, place)
        except NonFiniteError:
            self._optimizer.clear_gradients()
            raise
        self._optimizer.step(norm)
        self._updates_done += 1
        return _Update(sums, norm, self._clock.now() - learned)

    def _backward(self, mini_batch: MiniBatch) -> Sums:
        """Leave the mini-batch's gradients at the parameters; return the sums over all packs and ranks."""
        packs = self._on_device([pack for share in mini_batch.shares for pack in share])

        def loss_of(chunk: nn.Module, pack: PackedBatch) -> tuple[torch.Tensor, Sums]:
            return self._objective(chunk, pack, mini_batch.total)

        results = run_packs(self._chunks, packs, loss_of, forward=self._hidden, backward=True)
        sums = reduce(lambda one, other: one.plus(other), results, Sums.zero(self.ranks.group.device))
        return Sums(self.ranks.sum_of_reports(sums.added), self.ranks.group.max(sums.greatest))

    def _hidden(self, chunk: nn.Module, pack: PackedBatch) -> torch.Tensor:
        hidden: torch.Tensor = chunk(pack, self._temperature)
        return hidden

    def _on_device(self, packs: Sequence[PackedBatch]) -> list[PackedBatch]:
        spread = self._chunks[0].config.sequence_parallel
        return [pack.to(self.ranks.group.device) for pack in even_packs(packs, self.ranks, spread=spread)]

    @torch.no_grad()
    def logprobs(self, packs: Sequence[PackedBatch]) -> list[torch.Tensor]:
        """As `LearnerBackend.logprobs`, under the temperature of the rollouts."""

        def loss_of(chunk: nn.Module, pack: PackedBatch) -> tuple[torch.Tensor, torch.Tensor]:
            logprobs_K, _ = chunk(pack, self._temperature)
            return logprobs_K.sum(), logprobs_K

        device = self.ranks.group.device
        results = run_packs(self._chunks, self._on_device(packs), loss_of, forward=self._hidden, backward=False)
        counts = [pack.num_targets for pack in packs]
        whole = torch.cat(results[: len(packs)]) if results and packs else torch.zeros(sum(counts), device=device)
        whole = self.ranks.gatherers.from_stage(whole.float(), self.ranks.layout.pipeline - 1)
        return list(whole.cpu().split(counts)) if counts else []

    def iter_hf_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """As `LearnerBackend.iter_hf_weights`."""
        return self.policy.iter_hf_weights()

    def weight_digest(self) -> str:
        """As `LearnerBackend.weight_digest`."""
        return weight_digest(self.iter_hf_weights())

    @property
    def state_bytes(self) -> int:
        """Bytes of `state_tensors` after an update, whole."""
        return 3 * 4 * self._weights.num_elements

    def state_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """As `LearnerBackend.state_tensors`: `model/<name>` in float32, then each moment."""
        for kind in (MASTER, *moments_of(self._updates_done)):
            place = "model" if kind == MASTER else kind
            for name, whole in self._weights.whole(partial(self._kept, kind), torch.float32, self.ranks.gatherers):
                yield f"{place}/{name}", whole

    def _kept(self, kind: str, place: str, of_experts: bool) -> torch.Tensor:
        return self._optimizer.whole(self._weights.params[place], kind, self.ranks.copies_group(of_experts))

    def state_extra(self) -> dict[str, Any]:
        """As `LearnerBackend.state_extra`. The schedule is a function of `steps_done`; the generator state is there for
        the FSDP backend, which goes on from this, too. Nothing of ours draws from it."""
        generator = base64.b64encode(torch.get_rng_state().numpy().tobytes()).decode()
        return {"steps_done": self._steps_done, "updates_done": self._updates_done, "torch_rng": generator}

    def load_state(self, tensor: Callable[[str], torch.Tensor], extra: dict[str, Any]) -> None:
        """As `LearnerBackend.load_state`, also of a state that the FSDP backend saved. Raises DataError when it is of
        another model."""
        steps_done = extra.get("steps_done")
        if not isinstance(steps_done, int):
            raise DataError("the learner state has no `steps_done`: it is not one of this backend")
        if "adapters" in extra:
            raise DataError("the learner state is of adapters (learner.lora), and this learner trains all weights")
        updates_done = extra.get("updates_done", steps_done)
        self._weights.load(lambda name: tensor(f"model/{name}"))
        for entry, number, param in self._weights.own():

            def read(kind: str, entry: Any = entry, number: int = number) -> torch.Tensor:
                place = "model" if kind == MASTER else kind
                return self._weights.part(entry, number, lambda name: tensor(f"{place}/{name}"))

            self._optimizer.restore(param, updates_done, read)
        self._steps_done, self._updates_done = steps_done, updates_done


def build(
    model: PreTrainedModel,
    *,
    megatron: MegatronConfig,
    optimizer: OptimizerConfig,
    algorithm: AlgorithmConfig,
    total_steps: int,
    temperature: float,
    ranks: MegatronRanks,
    dtype: torch.dtype = torch.float32,
    watch: TokenWatch | None = None,
    clock: Clock | None = None,
    families: dict[str, Family] = FAMILIES,
) -> MegatronBackend:
    """The RL learner of one rank. Collective.

    model: on the CPU, the same weights on every rank; it is read, and no part of it is kept. temperature: the one that
    rollouts are sampled with. dtype: of forward, backward and published weights; the optimizer's are float32. watch: as
    `policy_loss` has it. Raises ConfigError for a model that has no mapping.
    """
    family = family_of(model.config, families)
    settings = _configured(layer_settings(model.config, family, megatron, dtype, ranks.group.device))
    chunks, weights = _placed(model, family, settings, ranks)
    gradients = DistributedDataParallelConfig(**gradient_settings(megatron))
    wrapped = [DistributedDataParallel(settings, gradients, chunk.to(ranks.group.device)) for chunk in chunks]
    objective = partial(policy_loss, algorithm=algorithm, temperature=temperature, watch=watch)
    return MegatronBackend(
        wrapped,
        weights,
        objective,
        optimizer,
        total_steps,
        ranks=ranks,
        policy=MegatronPolicy(weights, ranks, dtype, model.config.hidden_size),
        adamw=MegatronAdamW(wrapped, optimizer, distributed=megatron.distributed_optimizer, dtype=dtype),
        temperature=temperature,
        uses_start=algorithm.uses_start,
        clock=clock,
    )


def _placed(
    model: PreTrainedModel, family: Family, settings: TransformerConfig, ranks: MegatronRanks
) -> tuple[list[PolicyChunk], ModelWeights]:
    """This rank's model chunks with their weights, and what brings those of all ranks together."""
    config, names = model.config, dict(model.named_parameters())
    experts = settings.num_moe_experts or 0
    plan = make_plan(family, list(names), ranks.layout, num_layers=settings.num_layers, num_experts=experts)
    # As transformers has them: positions, and a token whose embedding learns nothing.
    own = {
        "rotary": deepcopy(model.base_model.rotary_emb).to(ranks.group.device),
        "padding": model.get_input_embeddings().padding_idx,
    }
    chunks = [PolicyChunk(settings, config, ranks, number, **own) for number in range(ranks.layout.virtual)]
    groups = config.num_key_value_heads
    sizes = Sizes(groups, config.num_attention_heads // groups, config.vocab_size)
    shapes = {name: param.shape for name, param in names.items()}
    weights = ModelWeights(plan, shapes, sizes, chunks, ranks)
    weights.load(lambda name: names[name].detach())
    weights.mark_cut()
    return chunks, weights


def _configured(settings: dict[str, Any]) -> TransformerConfig:
    """Raises ConfigError for what megatron-core refuses."""
    try:
        return TransformerConfig(**settings, finalize_model_grads_func=_finalize)
    except (ValueError, AssertionError) as error:
        raise ConfigError(f"megatron-core refuses this model or layout: {error}") from error


def _finalize(chunks: list[nn.Module], num_tokens: torch.Tensor | None = None, **settings: Any) -> None:
    """Sum gradients over the ranks, and divide them by nothing: losses hold the counts of the batch."""
    finalize_model_grads(chunks, None, **settings)
