"""The FSDP2 learner: steps of one optimizer update or several over packs, on one rank or many.

Guarantees: the result does not depend on how the batch is cut into packs and ranks, up to rounding (but for the losses
that look at a pack's statistics, `algorithms.losses.covariance`); on two shares one rank and two agree to the bit (see
`learner.shares`); with one rank and one share it is bit-equal to a plain loop over `PolicyModel` and `make_optimizer`.
An update changes the weights only after the loss, every metric and the gradient norm were found finite on all ranks.
State goes out and comes in as named whole tensors and JSON: restored, the next steps are bit-equal to those of a
learner that was never stopped.

Knows nothing of where packs come from, of versions, or of files.
"""

import base64
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel

from streamrl.algorithms.aggregation import Denominators
from streamrl.clock import Clock, SystemClock
from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.learner import OptimizerConfig
from streamrl.errors import DataError, NonFiniteError
from streamrl.learner.batch.mini_batches import MiniBatch
from streamrl.learner.batch.packing import PackedBatch, empty_pack
from streamrl.learner.finite import require_finite
from streamrl.learner.model.sharding import ShardedPolicy
from streamrl.learner.objectives import Objective, Reference, policy_loss
from streamrl.learner.optim.moments import MOMENTS
from streamrl.learner.optim.optimizer import clip_gradients, make_optimizer
from streamrl.learner.optim.schedule import learning_rate
from streamrl.learner.parallel.process_group import LearnerGroup
from streamrl.learner.references.averaged import AveragedPolicy
from streamrl.learner.router_balance import RouterBalance
from streamrl.learner.sums import Sums, mean_over_updates, nothing_done
from streamrl.learner.token_watch import TokenWatch


class _Update(NamedTuple):
    """One optimizer update: sums over the mini-batch, what its routers did, the gradient norm before clipping, seconds
    from it on."""

    sums: Sums
    routing: dict[str, float]
    grad_norm: float
    optimizer_s: float


class FsdpBackend:
    """`LearnerBackend` on FSDP2.

    Example:
        backend = build(model, optimizer=..., algorithm=..., total_steps=100, temperature=1.0, group=group)
        metrics = backend.step(packs, denominators)
    """

    def __init__(
        self,
        policy: ShardedPolicy,
        objective: Objective,
        optimizer: OptimizerConfig,
        total_steps: int,
        *,
        temperature: float = 1.0,
        clock: Clock | None = None,
        uses_start: bool = False,
        idle_steps: int = 0,
        average: AveragedPolicy | None = None,
        router_aux_loss_coef: float = 0.0,
        router_replay: bool = False,
    ) -> None:
        """objective: what a pack's loss is. total_steps: where the rate's decay ends. temperature: of
        `logprobs`. uses_start: whether the objective looks at the policy before the first update of a step.
        idle_steps: the first steps that make no update; the rate's course begins behind them. average: follows the
        policy, and is part of the state. router_aux_loss_coef: of the loss that balances experts (`router_balance`).
        router_replay: tokens go to the experts that packs say.

        Several backends may follow one another on one policy (warm-up, then RL); each has its own optimizer.
        """
        self.policy = policy
        self.group = policy.group
        self._objective = objective
        self._config = optimizer
        self._total_steps = total_steps
        self._temperature = temperature
        self._clock = clock or SystemClock()
        self._uses_start = uses_start
        self._idle_steps = idle_steps
        self._average = average
        self._router_coef = router_aux_loss_coef
        if router_replay:
            policy.module.replays_routes = True
        self._optimizer = make_optimizer(policy.shards.values(), optimizer)
        self._steps_done = 0
        self._updates_done = 0

    @property
    def steps_done(self) -> int:
        return self._steps_done

    def step(self, packs: Sequence[PackedBatch], total: Denominators) -> dict[str, float]:
        """As `LearnerBackend.step`, with the times of `step_batch`."""
        return self.step_batch([MiniBatch([packs], total)])

    def step_batch(self, mini_batches: Sequence[MiniBatch], epochs: int = 1) -> dict[str, float]:
        """As `LearnerBackend.step_batch`. Also returns `time/forward_backward` and `time/optimizer`, seconds."""
        if self._steps_done < self._idle_steps:
            self._steps_done += 1
            return nothing_done()
        started = self._clock.now()
        if self._uses_start and len(mini_batches) * epochs > 1:
            mini_batches = [self._with_start(mini_batch) for mini_batch in mini_batches]
        step, steps = self._steps_done - self._idle_steps, self._total_steps - self._idle_steps
        rate = learning_rate(step, self._config, steps)
        self._optimizer.set_learning_rate(rate)
        updates = [self._update(mini_batch) for _ in range(epochs) for mini_batch in mini_batches]
        self._steps_done += 1
        if self._average is not None:
            self._average.follow(self._steps_done, self.policy.shards)
        optimizing = sum(update.optimizer_s for update in updates)
        return {
            **mean_over_updates([update.sums for update in updates], epochs),
            **{name: sum(one.routing[name] for one in updates) / len(updates) for name in updates[0].routing},
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

    def _update(self, mini_batch: MiniBatch) -> "_Update":
        try:
            sums, routing = self._backward(mini_batch)
            self.policy.collect_gradients()
            learned = self._clock.now()
            norm = self._clip()
            place = f"learner step {self._steps_done + 1}, update {self._updates_done + 1}"
            require_finite({**sums.metrics(), **routing, "grad/norm": norm}, place)
        except NonFiniteError:
            self.policy.clear_gradients()
            raise
        self._optimizer.step()
        self.policy.clear_gradients()
        self._updates_done += 1
        return _Update(sums, routing, norm, self._clock.now() - learned)

    def _backward(self, mini_batch: MiniBatch) -> tuple[Sums, dict[str, float]]:
        """Leave the mini-batch's gradients at the parameters; return the sums over all packs and ranks, and what the
        routers of a model with experts did."""
        parts, total = [], mini_batch.total
        balance = self._balance(mini_batch)
        for share in mini_batch.shares:
            packs = self.padded(share)
            for number, pack in enumerate(packs, start=1):
                self.policy.set_gradient_sync(number == len(packs))
                pack = pack.to(self.group.device)
                loss, more = self._objective(self.policy.module, pack, total)
                if balance is not None:
                    loss = loss + balance.term(pack)
                # FSDP averages gradients over ranks, and the denominators are global: undo the division.
                self.policy.backward(loss * self.group.shard_size)
                parts.append(more)
        sums = reduce(lambda one, other: one.plus(other), parts)
        routing = {} if balance is None else balance.metrics()
        return type(sums)(self.group.sum(sums.added), self.group.max(sums.greatest)), routing

    def _balance(self, mini_batch: MiniBatch) -> RouterBalance | None:
        """Collective. None without routers, and where ranks have parts of a pack's tokens."""
        routers = getattr(self.policy.module, "routers", None)
        if routers is None or self.group.sequence_size > 1:
            return None
        replays = self.policy.module.replays_routes
        balance = RouterBalance(routers, self._router_coef, self.group.sum, replays=replays)
        packs = (pack.to(self.group.device) for share in mini_batch.shares for pack in self.padded(share))
        balance.count(packs, lambda pack: self.policy.module(pack, self._temperature))
        return balance

    def padded(self, packs: Sequence[PackedBatch]) -> list[PackedBatch]:
        """As `padded`, over the ranks of this one."""
        return padded(packs, self.group)

    def _clip(self) -> float:
        over_ranks = self._sum_square if self.group.world_size > 1 else None
        counted = self.policy.counted() if self.group.tensor_size > 1 else None
        return clip_gradients(list(self.policy.shards.values()), self._config.max_grad_norm, over_ranks, counted)

    def _sum_square(self, square: torch.Tensor) -> torch.Tensor:
        """Over the ranks, which meet on the device, also when gradients lie elsewhere."""
        square_here = square.to(self.group.device)
        return self.group.sum_over_tensor(self.group.sum_over_shards(square_here)).to(square.device)

    @torch.no_grad()
    def logprobs(self, packs: Sequence[PackedBatch]) -> list[torch.Tensor]:
        """As `LearnerBackend.logprobs`, under the temperature of the rollouts."""
        outputs = [self.policy.module(pack.to(self.group.device), self._temperature)[0] for pack in self.padded(packs)]
        return [output.cpu() for output in outputs[: len(packs)]]

    def iter_hf_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """As `LearnerBackend.iter_hf_weights`."""
        return self.policy.iter_hf_weights()

    def weight_digest(self) -> str:
        """As `LearnerBackend.weight_digest`."""
        return self.policy.weight_digest()

    @property
    def state_bytes(self) -> int:
        """Bytes of `state_tensors` after an update, whole."""
        weights = 4 * self.policy.num_parameters * (1 if self._average is None else 2)
        shards = self.policy.shards.items()
        moments = (self._optimizer.moment_bytes(shard, self.policy.num_elements(name)) for name, shard in shards)
        return weights + sum(moments)

    def state_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """As `LearnerBackend.state_tensors`: `model/<name>`, then the average's, in float32; then each moment, as the
        optimizer has it."""
        for name, whole in self.policy.iter_weights():
            yield f"model/{name}", whole
        if self._average is not None:
            yield from self._average.state_tensors()
        if not self._updates_done:
            return
        for moment in MOMENTS:
            for name, shard in self.policy.shards.items():
                for kind, part in self._optimizer.parts(shard, moment):
                    yield f"{kind}/{name}", self.policy.whole(name, part)

    def state_extra(self) -> dict[str, Any]:
        """As `LearnerBackend.state_extra`. The schedule is a function of `steps_done`; the generator state
        is this rank's (nothing of ours draws from it)."""
        state = torch.get_rng_state().numpy().tobytes()
        done = {"steps_done": self._steps_done, "updates_done": self._updates_done}
        facts = {**done, "torch_rng": base64.b64encode(state).decode()}
        average = {} if self._average is None else self._average.state_facts()
        return {**facts, **average, **self.policy.state_facts()}

    def load_state(self, tensor: Callable[[str], torch.Tensor], extra: dict[str, Any]) -> None:
        """As `LearnerBackend.load_state`. Raises DataError when the state is of another model."""
        steps_done, generator = extra.get("steps_done"), extra.get("torch_rng")
        if not isinstance(steps_done, int) or not isinstance(generator, str):
            raise DataError("the learner state has no `steps_done` or no `torch_rng`: it is not one of this backend")
        updates_done = extra.get("updates_done", steps_done)  # before there were steps of several updates
        self.policy.check_state(extra)
        self.policy.load_weights(lambda name: tensor(f"model/{name}"))
        if self._average is not None:
            self._average.load_state(tensor, extra)
        self._optimizer.state.clear()
        if updates_done:
            for name, shard in self.policy.shards.items():
                self._optimizer.restore(shard, updates_done, partial(self._read_part, tensor, name))
        self._steps_done, self._updates_done = steps_done, updates_done
        raw = bytearray(base64.b64decode(generator))
        torch.set_rng_state(torch.frombuffer(raw, dtype=torch.uint8))

    def _read_part(
        self, tensor: Callable[[str], torch.Tensor], name: str, kind: str, dtype: torch.dtype, elements: int
    ) -> torch.Tensor:
        """As `ReadPart`, of parameter `name`."""
        whole = tensor(f"{kind}/{name}")
        if whole.dtype != dtype:
            raise DataError(
                f"the learner state has {kind}/{name} in {whole.dtype}, and this optimizer keeps it in {dtype}: the "
                "state was saved under another `kind` of optimizer, or under a learner.tensor_parallel that leaves a "
                "rank rows of another length; resume with those of the run"
            )
        return self.policy.part_of(name, whole, elements)


def padded(packs: Sequence[PackedBatch], group: LearnerGroup) -> list[PackedBatch]:
    """Collective. As many packs as the rank that has most, one at least: each forward is a collective."""
    count = group.max_int(max(len(packs), 1))
    return [*packs, *(empty_pack() for _ in range(count - len(packs)))]


def build(
    model: PreTrainedModel,
    *,
    optimizer: OptimizerConfig,
    algorithm: AlgorithmConfig,
    total_steps: int,
    temperature: float,
    group: LearnerGroup,
    dtype: torch.dtype = torch.float32,
    clock: Clock | None = None,
    reference: Reference | None = None,
    average: AveragedPolicy | None = None,
) -> FsdpBackend:
    """The RL learner of one rank. Collective.

    model: the same weights on every rank; it is taken over. temperature: the one that rollouts are sampled
    with. dtype: of forward, backward and published weights; master weights and optimizer are float32.
    """
    return on_policy(
        ShardedPolicy(model, group, dtype),
        optimizer=optimizer,
        algorithm=algorithm,
        total_steps=total_steps,
        temperature=temperature,
        clock=clock,
        reference=reference,
        average=average,
    )


def on_policy(
    policy: ShardedPolicy,
    *,
    optimizer: OptimizerConfig,
    algorithm: AlgorithmConfig,
    total_steps: int,
    temperature: float,
    clock: Clock | None = None,
    reference: Reference | None = None,
    idle_steps: int = 0,
    average: AveragedPolicy | None = None,
    watch: TokenWatch | None = None,
    router_aux_loss_coef: float = 0.0,
    router_replay: bool = False,
) -> FsdpBackend:
    """The RL learner on a policy that is sharded already, as a warm-up leaves it. reference: as `policy_loss` has it.
    idle_steps: as `FsdpBackend`'s. average: the reference, if it follows the policy. watch: as `policy_loss` has it."""
    objective = partial(policy_loss, algorithm=algorithm, temperature=temperature, reference=reference, watch=watch)
    return FsdpBackend(
        policy,
        objective,
        optimizer,
        total_steps,
        temperature=temperature,
        clock=clock,
        uses_start=algorithm.uses_start,
        idle_steps=idle_steps,
        average=average,
        router_aux_loss_coef=router_aux_loss_coef,
        router_replay=router_replay,
    )
