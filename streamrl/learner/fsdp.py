"""The FSDP2 learner: one optimizer step over packs, on one rank or many.

Guarantees: the result does not depend on how the batch is cut into packs and ranks, up to rounding (but for the losses
that look at a pack's statistics, `algorithms.losses.covariance`); on two shares one rank and two agree to the bit (see
`learner.shares`); with one rank and one share it is bit-equal to a plain loop over `PolicyModel` and `make_optimizer`.
The weights change only after the loss, every metric and the gradient norm were found finite on all ranks. State goes
out and comes in as named whole tensors and JSON: restored, the next steps are bit-equal to those of a learner that was
never stopped.

Knows nothing of where packs come from, of versions, or of files.
"""

import base64
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel

from streamrl.algorithms.aggregation import Denominators
from streamrl.clock import Clock, SystemClock
from streamrl.config.learner_tables import AlgorithmConfig, OptimizerConfig
from streamrl.errors import DataError, NonFiniteError
from streamrl.learner.finite import require_finite
from streamrl.learner.objectives import Objective, Reference, Sums, policy_loss
from streamrl.learner.optimizer import clip_gradients, make_optimizer, set_learning_rate
from streamrl.learner.packing import PackedBatch, empty_pack
from streamrl.learner.process_group import LearnerGroup
from streamrl.learner.schedule import learning_rate
from streamrl.learner.sharding import ShardedPolicy

MOMENTS = ("exp_avg", "exp_avg_sq")
"""AdamW's tensors for each parameter."""


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
    ) -> None:
        """objective: what a pack's loss is. total_steps: where the rate's decay ends. temperature: of
        `logprobs`.

        Several backends may follow one another on one policy (warm-up, then RL); each has its own optimizer.
        """
        self.policy = policy
        self.group = policy.group
        self._objective = objective
        self._config = optimizer
        self._total_steps = total_steps
        self._temperature = temperature
        self._clock = clock or SystemClock()
        self._optimizer = make_optimizer(policy.shards.values(), optimizer)
        self._steps_done = 0

    @property
    def steps_done(self) -> int:
        return self._steps_done

    def step(self, packs: Sequence[PackedBatch], total: Denominators) -> dict[str, float]:
        """As `LearnerBackend.step`. Also returns `time/forward_backward` and `time/optimizer`, seconds."""
        return self.step_shares([packs], total)

    def step_shares(self, shares: Sequence[Sequence[PackedBatch]], total: Denominators) -> dict[str, float]:
        """As `LearnerBackend.step_shares`, with the times of `step`."""
        started = self._clock.now()
        try:
            metrics = self._backward(shares, total).metrics()
            self.policy.collect_gradients()
            learned = self._clock.now()
            metrics["grad/norm"] = self._clip()
            require_finite(metrics, f"learner step {self._steps_done + 1}")
        except NonFiniteError:
            self.policy.clear_gradients()
            raise
        metrics["learner/lr"] = self._apply()
        metrics["time/forward_backward"] = learned - started
        metrics["time/optimizer"] = self._clock.now() - learned
        return metrics

    def _backward(self, shares: Sequence[Sequence[PackedBatch]], total: Denominators) -> Sums:
        """Leave the batch's gradients at the parameters; return the sums over all packs and ranks."""
        sums = Sums.zero(self.group.device)
        for share in shares:
            packs = self._padded(share)
            for number, pack in enumerate(packs, start=1):
                self.policy.set_gradient_sync(number == len(packs))
                loss, more = self._objective(self.policy.module, pack.to(self.group.device), total)
                # FSDP averages gradients over ranks, and the denominators are global: undo the division.
                (loss * self.group.data_size).backward()
                sums = sums.plus(more)
        return Sums(self.group.sum(sums.added), self.group.max(sums.greatest))

    def _padded(self, packs: Sequence[PackedBatch]) -> list[PackedBatch]:
        """As many packs as the rank that has most: each forward is a collective."""
        count = self.group.max_int(max(len(packs), 1))
        return [*packs, *(empty_pack() for _ in range(count - len(packs)))]

    def _clip(self) -> float:
        over_ranks = self._sum_square if self.group.world_size > 1 else None
        counted = self.policy.counted() if self.group.tensor_size > 1 else None
        return clip_gradients(list(self.policy.shards.values()), self._config.max_grad_norm, over_ranks, counted)

    def _sum_square(self, square: torch.Tensor) -> torch.Tensor:
        """Over the ranks, which meet on the device, also when gradients lie elsewhere."""
        square_here = square.to(self.group.device)
        return self.group.sum_over_tensor(self.group.sum(square_here)).to(square.device)

    def _apply(self) -> float:
        """Step the optimizer; the rate that was used is returned."""
        rate = learning_rate(self._steps_done, self._config, self._total_steps)
        set_learning_rate(self._optimizer, rate)
        self._optimizer.step()
        self.policy.clear_gradients()
        self._steps_done += 1
        return rate

    @torch.no_grad()
    def logprobs(self, packs: Sequence[PackedBatch]) -> list[torch.Tensor]:
        """As `LearnerBackend.logprobs`, under the temperature of the rollouts."""
        outputs = [self.policy.module(pack.to(self.group.device), self._temperature)[0] for pack in self._padded(packs)]
        return [output.cpu() for output in outputs[: len(packs)]]

    def iter_hf_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """As `LearnerBackend.iter_hf_weights`."""
        return self.policy.iter_hf_weights()

    def weight_digest(self) -> str:
        """As `LearnerBackend.weight_digest`."""
        return self.policy.weight_digest()

    def state_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """As `LearnerBackend.state_tensors`: `model/<name>`, then each moment, in float32."""
        for name, whole in self.policy.iter_weights():
            yield f"model/{name}", whole
        if not self._steps_done:
            return
        for moment in MOMENTS:
            for name, shard in self.policy.shards.items():
                yield f"{moment}/{name}", self.policy.whole(name, self._optimizer.state[shard][moment])

    def state_extra(self) -> dict[str, Any]:
        """As `LearnerBackend.state_extra`. The schedule is a function of `steps_done`; the generator state
        is this rank's (nothing of ours draws from it)."""
        state = torch.get_rng_state().numpy().tobytes()
        facts = {"steps_done": self._steps_done, "torch_rng": base64.b64encode(state).decode()}
        return {**facts, **self.policy.state_facts()}

    def load_state(self, tensor: Callable[[str], torch.Tensor], extra: dict[str, Any]) -> None:
        """As `LearnerBackend.load_state`. Raises DataError when the state is of another model."""
        steps_done, generator = extra.get("steps_done"), extra.get("torch_rng")
        if not isinstance(steps_done, int) or not isinstance(generator, str):
            raise DataError("the learner state has no `steps_done` or no `torch_rng`: it is not one of this backend")
        self.policy.check_state(extra)
        self.policy.load_weights(lambda name: tensor(f"model/{name}"))
        self._optimizer.state.clear()
        if steps_done:
            for name, shard in self.policy.shards.items():
                moments = {key: self.policy.shard_of(name, tensor(f"{key}/{name}")) for key in MOMENTS}
                # The fused kernel keeps its step count as float32 on the parameter's device.
                count = torch.tensor(float(steps_done), dtype=torch.float32, device=shard.device)
                self._optimizer.state[shard] = {"step": count, **moments}
        self._steps_done = steps_done
        raw = bytearray(base64.b64decode(generator))
        torch.set_rng_state(torch.frombuffer(raw, dtype=torch.uint8))


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
) -> FsdpBackend:
    """The RL learner on a policy that is sharded already, as a warm-up leaves it. reference: what `kl_coef` holds it
    to; needed where that is not 0."""
    objective = partial(policy_loss, algorithm=algorithm, temperature=temperature, reference=reference)
    return FsdpBackend(policy, objective, optimizer, total_steps, temperature=temperature, clock=clock)
