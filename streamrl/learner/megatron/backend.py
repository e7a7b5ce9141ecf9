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
from dataclasses import replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel

from streamrl.algorithms.aggregation import Denominators
from streamrl.algorithms.losses import TEACHER_LOSSES
from streamrl.clock import Clock, SystemClock
from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.learner import MegatronConfig, OptimizerConfig
from streamrl.errors import DataError, NonFiniteError
from streamrl.learner.batch.mini_batches import MiniBatch
from streamrl.learner.batch.packing import PackedBatch
from streamrl.learner.blame import Logprobs
from streamrl.learner.checkpoint.digest import weight_digest
from streamrl.learner.finite import require_finite
from streamrl.learner.megatron.balance import MegatronBalance
from streamrl.learner.megatron.families import FAMILIES, Family
from streamrl.learner.megatron.optimizer import MASTER, MegatronAdamW, moments_of
from streamrl.learner.megatron.pipeline import hidden_by, logprobs_of, on_device, read_packs, run_packs
from streamrl.learner.megatron.placed import Placed, place, with_gradients
from streamrl.learner.megatron.policy import MegatronPolicy
from streamrl.learner.megatron.ranks import MegatronRanks
from streamrl.learner.megatron.references import AveragedReference, MegatronReference
from streamrl.learner.megatron.weights import ModelWeights
from streamrl.learner.objectives import Objective, policy_loss
from streamrl.learner.optim.schedule import learning_rate
from streamrl.learner.sums import Sums, mean_over_updates, nothing_done
from streamrl.learner.token_watch import TokenWatch

if TYPE_CHECKING:
    from streamrl.learner.model.adapters import AdapterSettings


class _Update(NamedTuple):
    """One optimizer update: sums over the mini-batch, what its routers did, the gradient norm before clipping, seconds
    from it on."""

    sums: Sums
    routing: dict[str, float]
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
        referred: MegatronReference | None = None,
        average: AveragedReference | None = None,
        balance: MegatronBalance | None = None,
        idle_steps: int = 0,
        sums: type[Sums] = Sums,
        clock: Clock | None = None,
    ) -> None:
        """chunks: of this rank, with their weights, which `weights` and `policy` bring together. adamw: over them, and
        begun with `optimizer`. objective, total_steps, temperature, uses_start, average, idle_steps: as `FsdpBackend`
        has them. referred: gives the packs of a step their `reference_logprobs`, before its first update. balance: of
        the routers of a model with experts. sums: the kind of those that the objective gives."""
        self.ranks = ranks
        self.policy = policy
        self._chunks = chunks
        self._weights = weights
        self._objective = objective
        self._config = optimizer
        self._total_steps = total_steps
        self._temperature = temperature
        self._uses_start = uses_start
        self._referred = referred
        self._average = average
        self._balance = balance
        self._idle_steps = idle_steps
        self._kind = sums
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
        if self._steps_done < self._idle_steps:
            self._steps_done += 1
            return nothing_done()
        started = self._clock.now()
        if self._uses_start and len(mini_batches) * epochs > 1:
            mini_batches = [_with(mini_batch, "start_logprobs", self.logprobs) for mini_batch in mini_batches]
        if self._referred is not None:
            referred = partial(self._referred.logprobs, temperature=self._temperature)
            mini_batches = [_with(mini_batch, "reference_logprobs", referred) for mini_batch in mini_batches]
        step, steps = self._steps_done - self._idle_steps, self._total_steps - self._idle_steps
        rate = learning_rate(step, self._config, steps)
        self._optimizer.set_learning_rate(rate)
        updates = [self._update(mini_batch) for _ in range(epochs) for mini_batch in mini_batches]
        self._steps_done += 1
        if self._average is not None:
            self._average.follow(self._steps_done, partial(self._kept, MASTER))
        optimizing = sum(update.optimizer_s for update in updates)
        return {
            **mean_over_updates([update.sums for update in updates], epochs),
            **{name: sum(one.routing[name] for one in updates) / len(updates) for name in updates[0].routing},
            "grad/norm": sum(update.grad_norm for update in updates) / len(updates),
            "learner/lr": rate,
            "time/forward_backward": self._clock.now() - started - optimizing,
            "time/optimizer": optimizing,
        }

    def _update(self, mini_batch: MiniBatch) -> _Update:
        self._optimizer.clear_gradients()
        sums, routing = self._backward(mini_batch)
        learned = self._clock.now()
        norm = self._optimizer.gradient_norm()
        place = f"learner step {self._steps_done + 1}, update {self._updates_done + 1}"
        try:
            require_finite({**sums.metrics(), **routing, "grad/norm": norm}, place)
        except NonFiniteError:
            self._optimizer.clear_gradients()
            raise
        self._optimizer.step(norm)
        self._updates_done += 1
        return _Update(sums, routing, norm, self._clock.now() - learned)

    def _backward(self, mini_batch: MiniBatch) -> tuple[Sums, dict[str, float]]:
        """Leave the mini-batch's gradients at the parameters; return the sums over all packs and ranks, and what the
        routers of a model with experts did."""
        packs = on_device([pack for share in mini_batch.shares for pack in share], self._chunks, self.ranks)

        def loss_of(chunk: nn.Module, pack: PackedBatch) -> tuple[torch.Tensor, Sums]:
            return self._objective(chunk, pack, mini_batch.total)

        if self._balance is not None:
            self._balance.begin(partial(read_packs, self._chunks, packs, self._temperature))
        results = run_packs(self._chunks, packs, loss_of, forward=hidden_by(self._temperature), backward=True)
        sums = reduce(lambda one, other: one.plus(other), results, self._kind.zero(self.ranks.group.device))
        routing = {} if self._balance is None else self._balance.metrics()
        return self._kind(self.ranks.sum_of_reports(sums.added), self.ranks.group.max(sums.greatest)), routing

    @torch.no_grad()
    def logprobs(self, packs: Sequence[PackedBatch]) -> list[torch.Tensor]:
        """As `LearnerBackend.logprobs`, under the temperature of the rollouts."""
        return logprobs_of(self._chunks, packs, self.ranks, self._temperature)

    def iter_hf_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """As `LearnerBackend.iter_hf_weights`."""
        return self.policy.iter_hf_weights()

    def weight_digest(self) -> str:
        """As `LearnerBackend.weight_digest`."""
        return weight_digest(self.iter_hf_weights())

    @property
    def state_bytes(self) -> int:
        """Bytes of `state_tensors` after an update, whole."""
        return (3 if self._average is None else 4) * 4 * self._weights.num_elements

    def state_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """As `LearnerBackend.state_tensors`: `model/<name>` in float32, then the average's, then each moment."""
        for kind in (MASTER, *moments_of(self._updates_done)):
            place = "model" if kind == MASTER else kind
            for name, whole in self._weights.whole(partial(self._kept, kind), torch.float32, self.ranks.gatherers):
                yield f"{place}/{name}", whole
            if kind == MASTER and self._average is not None:
                yield from self._average.state_tensors()

    def _kept(self, kind: str, place: str, of_experts: bool) -> torch.Tensor:
        return self._optimizer.whole(self._weights.params[place], kind, self.ranks.copies_group(of_experts))

    def state_extra(self) -> dict[str, Any]:
        """As `LearnerBackend.state_extra`. The schedule is a function of `steps_done`; the generator state is there for
        the FSDP backend, which goes on from this, too. Nothing of ours draws from it."""
        generator = base64.b64encode(torch.get_rng_state().numpy().tobytes()).decode()
        average = {} if self._average is None else self._average.state_facts()
        done = {"steps_done": self._steps_done, "updates_done": self._updates_done}
        return {**done, "torch_rng": generator, **average, **self.policy.state_facts()}

    def load_state(self, tensor: Callable[[str], torch.Tensor], extra: dict[str, Any]) -> None:
        """As `LearnerBackend.load_state`, also of a state that the FSDP backend saved. Raises DataError when it is of
        another model."""
        steps_done = extra.get("steps_done")
        if not isinstance(steps_done, int):
            raise DataError("the learner state has no `steps_done`: it is not one of this backend")
        self.policy.check_state(extra)
        updates_done = extra.get("updates_done", steps_done)
        self._weights.load(lambda name: tensor(f"model/{name}"))
        if self._average is not None:
            self._average.load_state(tensor, extra)
        for entry, number, param in self._weights.own():

            def read(kind: str, entry: Any = entry, number: int = number) -> torch.Tensor:
                place = "model" if kind == MASTER else kind
                return self._weights.part(entry, number, lambda name: tensor(f"{place}/{name}"))

            self._optimizer.restore(param, updates_done, read)
        self._steps_done, self._updates_done = steps_done, updates_done


def _with(mini_batch: MiniBatch, field: str, logprobs: Logprobs) -> MiniBatch:
    """Collective. The same with log-probs of the packs' targets in that field of each pack."""
    shares = [
        [replace(pack, **{field: found}) for pack, found in zip(share, logprobs(share), strict=True)]
        for share in mini_batch.shares
    ]
    return MiniBatch(shares, mini_batch.total)


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
    reference: MegatronReference | None = None,
    adapters: "AdapterSettings | None" = None,
    idle_steps: int = 0,
    router_aux_loss_coef: float = 0.0,
    router_replay: bool = False,
    clock: Clock | None = None,
    families: dict[str, Family] = FAMILIES,
) -> MegatronBackend:
    """The RL learner of one rank. Collective.

    model: on the CPU, the same weights on every rank; it is read, and no part of it is kept. temperature: the one that
    rollouts are sampled with. dtype: of forward, backward and published weights; the optimizer's are float32. watch: as
    `policy_loss` has it. reference: what the loss holds the policy to, or learns from; one that follows the policy is
    part of the state. adapters: where they are trained in the place of the weights; they use the model up.
    router_aux_loss_coef, router_replay: as `FsdpBackend` has them. Raises ConfigError for a model that has no mapping.
    """
    placed = place(model, families, megatron, dtype, ranks, adapted=adapters is not None)
    policy = _policy(model, placed, adapters, ranks, dtype)
    routers = [chunk.routers for chunk in placed.chunks if chunk.routers is not None]
    for one in routers:
        one.replays = router_replay
    wrapped = with_gradients(placed, megatron)
    objective = partial(policy_loss, algorithm=algorithm, temperature=temperature, watch=watch)
    return MegatronBackend(
        wrapped,
        policy.weights,
        objective,
        optimizer,
        total_steps,
        ranks=ranks,
        policy=policy,
        adamw=MegatronAdamW(wrapped, optimizer, distributed=megatron.distributed_optimizer, dtype=policy.version_dtype),
        temperature=temperature,
        uses_start=algorithm.uses_start,
        referred=reference if algorithm.kl_in_loss or algorithm.loss in TEACHER_LOSSES else None,
        average=reference if isinstance(reference, AveragedReference) else None,
        balance=MegatronBalance(routers, router_aux_loss_coef, ranks) if routers else None,
        idle_steps=idle_steps,
        clock=clock,
    )


def _policy(
    model: PreTrainedModel,
    placed: Placed,
    adapters: "AdapterSettings | None",
    ranks: MegatronRanks,
    dtype: torch.dtype,
) -> MegatronPolicy:
    if adapters is None:
        return MegatronPolicy(placed.weights, ranks, dtype, model.config.hidden_size)
    # Not above: it needs a package that only those have who train adapters.
    from streamrl.learner.megatron.adapters.policy import MegatronAdapterPolicy

    return MegatronAdapterPolicy(model, placed, adapters, ranks, dtype)
