"""A run of one configuration on rows that an older policy sampled, so that every choice of it has work to do.

The formulas are those of `streamrl.learner`, in the order of the reference loop: divergences that rewards pay,
advantages of the whole batch, a critic where the advantage has one, then the updates of a step.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from algorithm_cases.ragged import packs, ragged_prompts, rows_of, sample_answers
from algorithm_cases.task import distributions, make_policy
from streamrl.algorithms.advantages.estimate import RewardedRows, advantages_of, counted_rows, shaped_rewards
from streamrl.algorithms.advantages.groups import DoubleArray
from streamrl.algorithms.aggregation import Denominators
from streamrl.algorithms.divergences import REWARD_DIVERGENCES
from streamrl.config import Config
from streamrl.learner.auxiliary.gae_batch import ScoredPack, with_estimates
from streamrl.learner.auxiliary.kl_penalty import row_divergences
from streamrl.learner.batch.mini_batch_cut import mini_batch_of
from streamrl.learner.batch.packing import PackedBatch, empty_pack
from streamrl.learner.batch.rows import count_targets, row_targets, select_rows
from streamrl.learner.model.policy import PREFIX, PolicyModel
from streamrl.learner.objectives import Reference, policy_loss
from streamrl.learner.optim.optimizer import clip_gradients, make_optimizer
from streamrl.learner.parallel.process_group import open_group
from streamrl.learner.references.averaged import AveragedPolicy
from streamrl.learner.sums import Sums, mean_over_updates
from streamrl.reference_auxiliary import Cut, PlainCritic, again
from streamrl.types import RolloutRows

LAG = 3
"""Steps that the sampling policy is behind the trained one."""
ENDS = 10
"""Steps at either end of a run that make its figures."""

Follow = Callable[[int], None]
"""Called behind each step with the steps done."""


@dataclass(frozen=True, slots=True)
class Run:
    """rewards, metrics: of each step, the rewards as they were given; `cut_off` among the metrics. distance: nats from
    the policy that the run began with to the one that it ended with, on the last rows. policy: that one."""

    rewards: list[float]
    metrics: list[dict[str, float]]
    distance: float
    policy: PolicyModel

    @property
    def gain(self) -> float:
        return float(np.mean(self.rewards[-ENDS:]) - np.mean(self.rewards[:ENDS]))

    def mean(self, name: str) -> float:
        """Of a metric over all steps."""
        return float(np.mean([metrics[name] for metrics in self.metrics]))

    def last(self, name: str) -> float:
        """Of a metric over the last steps."""
        return float(np.mean([metrics[name] for metrics in self.metrics[-ENDS:]]))


class PayingCritic(PlainCritic):
    """A critic whose tokens pay their divergence from a reference, as `streamrl.learner.auxiliary.critic.Critic` has
    it."""

    def __init__(self, config: Config, start: Path, reference: Reference) -> None:
        super().__init__(config, start)
        self.reference = reference

    @torch.no_grad()
    def add_advantages(self, mini_batches: list[Cut], rows: RolloutRows) -> list[Cut]:
        scored = [
            ScoredPack(replace(one, values=self.model(one)), part.rows.rewards, self.paid(one))
            for one, part in self.parts(mini_batches, rows)
        ]
        (judged,), _ = with_estimates([scored], self.critic, total=lambda sums: sums)
        return again(judged, mini_batches)

    def paid(self, one: PackedBatch) -> DoubleArray | None:
        """float64 [K]; None where nothing is paid."""
        algorithm = self.config.learner.algorithm
        if not algorithm.kl_in_reward:
            return None
        estimate, reference_K = REWARD_DIVERGENCES[algorithm.kl_estimator], self.reference(one, 1.0)[0]
        return algorithm.kl_coef * estimate(one.rollout_logprobs.double(), reference_K.double()).numpy()


class Learner:
    """The policy, what scores it, and its steps."""

    def __init__(self, config: Config, policy: PolicyModel, reference: Reference) -> None:
        self.config, self.policy, self.reference = config, policy, reference
        self.optimizer = make_optimizer(policy.parameters(), config.learner.optimizer)
        self.critic = self._critic() if config.learner.algorithm.has_critic else None

    def step(self, rows: RolloutRows, cut_off: np.ndarray, step: int) -> dict[str, float]:
        """All updates on one batch; the metrics of the step."""
        learner = self.config.learner
        counts = rows.group, rows.sample_index, row_targets(rows)
        judged = RewardedRows(rows.rewards, rows.valid, *counts, np.zeros((rows.num_rows, 0)), cut_off)
        judged = replace(judged, rewards_N=rows.rewards - self.paid(rows, step))
        rows = replace(rows, rewards=shaped_rewards(judged, self.config))
        mini_batches = self.cut(rows, judged, step)
        if self.critic is not None:
            mini_batches = self.critic.add_advantages(mini_batches, rows)
            self.critic.learn(step, mini_batches)
        if len(mini_batches) * learner.ppo_epochs > 1:
            mini_batches = [(self.before(own), total) for own, total in mini_batches]
        updates = [self.update(*one) for _ in range(learner.ppo_epochs) for one in mini_batches]
        return mean_over_updates(updates, learner.ppo_epochs)

    @torch.no_grad()
    def paid(self, rows: RolloutRows, step: int) -> DoubleArray:
        """float64 [N], what the reward of each row pays for its distance from the reference."""
        algorithm = self.config.learner.algorithm
        if not algorithm.kl_in_rows:
            return np.zeros(rows.num_rows)
        own = packs(rows, np.zeros(rows.num_rows), step)
        found = [self.reference(one, 1.0)[0] for one in own]
        return algorithm.kl_coef * row_divergences(own, found, algorithm.kl_estimator, rows.num_rows)

    def cut(self, rows: RolloutRows, judged: RewardedRows, step: int) -> list[Cut]:
        """The packs of each mini-batch, and its counts."""
        advantages = advantages_of(judged, self.config)
        rows = replace(rows, valid=counted_rows(judged, self.config))
        mini_batch_N = mini_batch_of(rows.group, self.config.learner.mini_batches)
        found = []
        for number in range(mini_batch_N.max() + 1):
            part = select_rows(rows, index := np.flatnonzero(mini_batch_N == number))
            found.append((packs(part, advantages[index], step) or [empty_pack()], count_targets(part)))
        return found

    @torch.no_grad()
    def before(self, own: list[PackedBatch]) -> list[PackedBatch]:
        """With the log-probs that all updates of the step are held close to."""
        return [replace(one, start_logprobs=self.policy(one, 1.0)[0]) for one in own]

    def update(self, own: list[PackedBatch], total: Denominators) -> Sums:
        sums = Sums.zero(torch.device("cpu"))
        for one in own:
            loss, more = policy_loss(self.policy, one, total, self.config.learner.algorithm, 1.0, self.reference)
            loss.backward()
            sums = sums.plus(more)
        clip_gradients(list(self.policy.parameters()), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return sums

    def _critic(self) -> PayingCritic:
        with TemporaryDirectory() as folder:
            self.policy.model.save_pretrained(folder)
            return PayingCritic(self.config, Path(folder), self.reference)


def train(config: Config, seed: int, teacher: PolicyModel | None = None) -> Run:
    """teacher: the reference of kind `path`."""
    policy, generator = make_policy(seed), torch.Generator().manual_seed(seed)
    with reference_of(config, policy, seed, teacher) as (reference, follow):
        learner, sampler = Learner(config, policy, reference), make_policy(seed)
        versions: deque[dict[str, torch.Tensor]] = deque(maxlen=LAG + 1)
        rewards, metrics = [], []
        for step in range(config.learner.steps):
            versions.append({name: weight.clone() for name, weight in policy.state_dict().items()})
            sampler.load_state_dict(versions[0])
            asked = ragged_prompts(generator)
            answers = sample_answers(sampler, asked, generator)
            rows = rows_of(answers, asked, answers.length_N, max(step - LAG, 0))
            rewards.append(float(rows.rewards.mean()))
            metrics.append({**learner.step(rows, answers.cut_off_N, step), "cut_off": float(answers.cut_off_N.mean())})
            follow(step + 1)
    return Run(rewards, metrics, distance(policy, make_policy(seed), rows), policy)


@contextmanager
def reference_of(
    config: Config, policy: PolicyModel, seed: int, teacher: PolicyModel | None
) -> Iterator[tuple[Reference, Follow]]:
    """The policy that the trained one is held to, of the kind that the configuration names."""
    settings = config.learner.algorithm.reference
    if settings.kind == "path":
        assert teacher is not None
        yield teacher, lambda step: None
    elif settings.kind == "initial":
        yield make_policy(seed), lambda step: None
    else:
        weights = {name.removeprefix(PREFIX): weight for name, weight in policy.named_parameters()}
        with (
            TemporaryDirectory() as folder,
            closing(open_group(0, 1, Path(folder) / "store", device=torch.device("cpu"))) as group,
        ):
            moving = {"every": settings.every, "decay": settings.decay}
            average = AveragedPolicy(lambda: make_policy(seed).model, group, torch.float32, **moving)
            yield average, lambda step: average.follow(step, weights)


@torch.no_grad()
def distance(policy: PolicyModel, other: PolicyModel, rows: RolloutRows) -> float:
    """Nats from `other` to `policy`: the mean divergence of their distributions in the place of each trained token."""
    (packed,) = packs(rows, np.zeros(rows.num_rows), 0)
    mine_KV, others_KV = (distributions(one, packed) for one in (policy, other))
    return float((mine_KV.exp() * (mine_KV - others_KV)).sum(-1).mean())
