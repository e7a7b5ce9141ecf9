"""The whole algorithm in one file, without the stream: sample, score, learn, repeat. Read this first.

    python -m streamrl.reference configs/quickstart.toml --model.preset none --model.path FOLDER --learner.steps 20

One process, one thing after the other, plain PyTorch. It uses the engine, the packing and the losses of streamrl and
nothing else of it: no Ray, no queue, no services; a second model that judges tokens is in `reference_auxiliary`. With
`rollout.deterministic = true`, `rollout.update_mode = "drain"` and `learner.max_staleness = 0` the running system gives
the same ids, losses, gradient norms and weights as this loop, to the bit; `tests/integration/test_invariant_4_*` holds
them together.

Left out, because it is the system's business and not the algorithm's: durability, staleness, in-flight updates,
evaluation beside the stream, resuming, killable rewards, more than one rank, adapters, warm-up. Start it from a model
that is right now and then.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from statistics import fmean

import numpy as np
import torch

from streamrl.algorithms.advantages.estimate import (
    RewardedRows,
    advantages_of,
    baseline_rows,
    counted_rows,
    shaped_rewards,
)
from streamrl.algorithms.advantages.groups import BoolArray, DoubleArray
from streamrl.algorithms.aggregation import Denominators
from streamrl.algorithms.group_filter import reason_to_filter
from streamrl.algorithms.group_sampling import GroupSampling
from streamrl.config import Config
from streamrl.config.loading.load import load_args
from streamrl.engines.torch.engine import TorchEngine
from streamrl.errors import ComponentError, ConfigError
from streamrl.ids import group_id, rollout_id, rollout_seed
from streamrl.learner.batch.mini_batch_cut import mini_batch_of
from streamrl.learner.batch.packing import PackedBatch, empty_pack, pack
from streamrl.learner.batch.rows import count_targets, row_targets, select_rows
from streamrl.learner.finite import require_finite
from streamrl.learner.model.policy import PREFIX, PolicyModel
from streamrl.learner.objectives import policy_loss
from streamrl.learner.optim.optimizer import clip_gradients, make_optimizer
from streamrl.learner.optim.schedule import learning_rate
from streamrl.learner.router_balance import RouterBalance
from streamrl.models.load import load_model
from streamrl.models.tokenizer import TextTokenizer, load_tokenizer
from streamrl.reference_auxiliary import Cut, make_plain_auxiliary_model
from streamrl.rewards.base import RewardItem, component_columns, with_components
from streamrl.rewards.build import make_scorer
from streamrl.scheduling.curriculum import Curriculum, next_turn
from streamrl.system.processor import strict_variables
from streamrl.system.standard_streams import hold_standard_streams
from streamrl.tasks.base import Prompt, Task
from streamrl.tasks.load import open_task
from streamrl.tasks.order import order_of
from streamrl.tasks.prompts import check_prompts, prompt_ids
from streamrl.types import (
    FinishReason,
    GenerationRequest,
    GenerationResult,
    IntArray,
    RolloutRows,
    Score,
    ScoreStatus,
    TokenOrigin,
    UpdateMode,
    Version,
)
from streamrl.weights.tensors import weights_digest


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What one step did. step: the step that it made, from 1. token_ids: sampled ids by rollout id."""

    step: int
    reward_mean: float
    loss: float
    grad_norm: float
    digest: str
    token_ids: dict[str, list[int]]


@dataclass(frozen=True, slots=True)
class Sample:
    """One rollout: what was asked and what was answered. turn: data pass and index of its prompt."""

    group: int
    turn: tuple[int, int]
    sample_index: int
    prompt: Prompt
    prompt_ids: IntArray
    result: GenerationResult

    @property
    def truncated(self) -> bool:
        return self.result.finish_reason is FinishReason.LENGTH


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Compute with so many threads: sums have other last bits with another number, so the system fixes both."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Reference:
    """The synchronous loop over one configuration. Raises ConfigError for what the loop leaves out.

    Example:
        keys = ["--model.preset", "none", "--model.path", "runs/quickstart/start", "--learner.steps", "2"]
        config = load_args(Path("configs/quickstart.toml"), keys)
        for record in Reference(config).steps():
            print(record.step, record.reward_mean, record.loss, record.digest)
    """

    def __init__(self, config: Config) -> None:
        if config.model.path is None:
            raise ConfigError("the reference loop needs model.path: a folder with a model that is warmed up already")
        if config.plays_episodes:
            raise ConfigError("the reference loop has no environments; leave environment.name out")
        if config.learner.lora.rank:
            raise ConfigError("the reference loop trains all weights; set learner.lora.rank = 0")
        algorithm = config.learner.algorithm
        if algorithm.kl_in_reward or algorithm.reference.kind == "average":
            raise ConfigError(
                "the reference loop has a divergence in the loss alone, from a policy that stands still; set "
                'learner.algorithm.kl_in = "loss" and reference.kind = "initial" or "path"'
            )
        self.config = config
        self.folder = Path(config.model.path)
        self.tokenizer: TextTokenizer = load_tokenizer(self.folder)
        self.task: Task = open_task(config, self.folder)
        self.order = order_of(self.task, config.seed)
        self.next_group = self.next_place = 0
        self.curriculum = Curriculum(config.data.curriculum)
        self.scorer = make_scorer(config.reward.rule, config.reward.model, config.sandbox)
        self.sampling = GroupSampling(config)
        self.engine = self._make_engine()
        with threads(config.learner.threads):
            self.policy = PolicyModel(load_model(self.folder, config.model.dtype).to(torch.float32))  # type: ignore[arg-type]
            self.policy.replays_routes = config.learner.router_replay
            self.optimizer = make_optimizer(self.policy.parameters(), config.learner.optimizer)
            self.start = self._start() if algorithm.has_reference else None
            self.auxiliary = make_plain_auxiliary_model(config, self.folder, self.start)

    def steps(self) -> Iterator[StepRecord]:
        """Every step, each as it is done."""
        for step in range(self.config.learner.steps):
            samples, scores = self.batch(step)
            rows = lay_out(step, samples, scores)
            truncated = np.array([sample.truncated for sample in samples])
            components = component_columns(scores, self.config.learner.algorithm.component_names)
            with threads(self.config.learner.threads):
                loss, grad_norm = self.learn(step, rows, truncated, components)
            ids = {sample.result.request_id: sample.result.token_ids.tolist() for sample in samples}
            drawn = rows.valid & ~baseline_rows(rows.sample_index, self.config)
            reward = float(rows.rewards[drawn].mean())
            yield StepRecord(step + 1, reward, loss, grad_norm, weights_digest(self.weights().items()), ids)

    def batch(self, step: int) -> tuple[list[Sample], list[Score]]:
        """`groups_per_step` groups in data order: of those that are filtered, the next ones in their place."""
        samples: list[Sample] = []
        scores: list[Score] = []
        wanted, left_out = self.config.learner.groups_per_step, 0
        while missing := wanted - len({sample.group for sample in samples}):
            for group in self.generate(step, missing):
                verdicts = self.score(group)
                self.measure(group, verdicts)
                left_out = 0 if self.keeps(group, verdicts) else left_out + 1
                if not left_out:
                    samples += group
                    scores += verdicts
            if left_out >= self.config.learner.filter.limit:
                raise ComponentError(f"step {step}: the last {left_out} groups were left out; see learner.filter.limit")
        return samples, scores

    def keeps(self, group: list[Sample], scores: list[Score]) -> bool:
        """Whether a group is trained: enough of its scores are valid, and `learner.filter` lets them pass."""
        rewards, greedy = [score.reward for score in scores if score.reward is not None], self.config.greedy_sample
        no_baseline = greedy is not None and scores[greedy].reward is None
        if len(rewards) < min(2, self.config.rollout.group_size) or no_baseline:
            return False
        scored = [index for index, score in enumerate(scores) if score.reward is not None]
        cut_off = [group[index].truncated for index in scored if index != greedy]
        if self.config.learner.overlong.mask_truncated and all(cut_off):
            return False
        named = self.config.learner.algorithm.component_names
        parts = [tuple(score.components[name] for name in named) for score in scores if score.reward is not None]
        return not reason_to_filter(rewards, self.config.learner.filter, parts if named else None)

    def generate(self, step: int, count: int) -> list[list[Sample]]:
        """The next prompts, `count` at most, `group_size` completions of each, under the present weights."""
        asked: list[tuple[int, tuple[int, int], int, Prompt, IntArray]] = []
        requests: list[GenerationRequest] = []
        turns = self.turns(count)
        for number, (data_pass, index) in enumerate(turns, start=self.next_group):
            prompt = self.task.train(index)
            ids = prompt_ids(prompt, self.tokenizer)
            for sample_index in range(self.config.rollout.group_size):
                rollout = rollout_id(group_id(prompt.prompt_id, data_pass), sample_index)
                seed = rollout_seed(self.config.seed, rollout)
                stop = self.tokenizer.eos_token_ids
                sampling = self.sampling.of(sample_index)
                requests.append(GenerationRequest(rollout, ids, seed, sampling, stop))
                asked.append((number, (data_pass, index), sample_index, prompt, ids))
        with threads(self.config.rollout.threads):
            self.engine.load_weights(self.weights(), Version(0, step), UpdateMode.DRAIN)
            results = self.engine.generate(requests)
        self.next_group += len(turns)
        samples = [Sample(*one, result) for one, result in zip(asked, results, strict=True)]
        return [list(group) for _, group in groupby(samples, lambda sample: sample.group)]

    def turns(self, count: int) -> list[tuple[int, int]]:
        """(data pass, index) of the next prompts that do not rest; fewer than `count` where the next one's turn hangs
        on how these are scored."""
        taken: list[tuple[int, int]] = []
        while len(taken) < count:
            asked = {index for _, index in taken} if self.curriculum.acts else set()
            turn = next_turn(self.next_place, self.order.at, lambda _: False, asked.__contains__, self.curriculum)
            if turn.position is None:
                break
            taken.append(self.order.at(turn.position))
            self.next_place = turn.position + 1
        return taken

    def measure(self, group: list[Sample], scores: list[Score]) -> None:
        """Tell the curriculum how well the model does on a prompt."""
        rewards = [score.reward for score in scores if score.reward is not None]
        if rewards:
            data_pass, index = group[0].turn
            self.curriculum.measured(index, data_pass, fmean(rewards))

    def score(self, samples: list[Sample]) -> list[Score]:
        """The verdict on every completion."""
        offsets = np.cumsum([0, *(len(sample.result.token_ids) for sample in samples)])
        texts = self.tokenizer.decode_batch(np.concatenate([s.result.token_ids for s in samples]), offsets)
        items = [
            RewardItem(
                completion=text,
                prompt=s.prompt.text,
                payload=s.prompt.payload,
                finish_reason=s.result.finish_reason,
                token_ids=s.result.token_ids.astype("<i4").tobytes(),
                prompt_ids=s.prompt_ids.astype("<i4").tobytes(),
            )
            for s, text in zip(samples, texts, strict=True)
        ]
        named = self.config.learner.algorithm.component_names
        return [with_components(score, named) for score in self.scorer.score(items)]

    def learn(self, step: int, rows: RolloutRows, truncated: BoolArray, components: DoubleArray) -> tuple[float, float]:
        """One step on the batch, of one update or several; returns the means of their losses and of the gradient norms
        before clipping."""
        learner = self.config.learner
        counts = rows.group, rows.sample_index, row_targets(rows)
        judged = RewardedRows(rows.rewards, rows.valid, *counts, components, truncated)
        rows = replace(rows, rewards=shaped_rewards(judged, self.config))
        mini_batches, idle = self.cut(step, rows, judged), learner.critic.warmup_steps
        if self.auxiliary is not None:
            mini_batches = self.auxiliary.add_advantages(mini_batches, rows)
            self.auxiliary.learn(step, mini_batches)
        if step < idle:
            return 0.0, 0.0
        self.optimizer.set_learning_rate(learning_rate(step - idle, learner.optimizer, learner.steps - idle))
        if learner.ppo_epochs * len(mini_batches) > 1:
            mini_batches = [(self.before(packs), total) for packs, total in mini_batches]
        updates = [self.update(*mini_batch) for _ in range(learner.ppo_epochs) for mini_batch in mini_batches]
        losses, norms = zip(*updates, strict=True)
        require_finite({"loss/policy": sum(losses), "grad/norm": sum(norms)}, f"step {step + 1}")
        return sum(losses) / len(updates), sum(norms) / len(updates)

    def cut(self, step: int, rows: RolloutRows, judged: RewardedRows) -> list[Cut]:
        """The packs of each mini-batch, and its counts. Advantages are of the whole batch."""
        learner = self.config.learner
        advantages = advantages_of(judged, self.config)
        rows = replace(rows, valid=counted_rows(judged, self.config))
        skip_zero = learner.algorithm.learns_from_advantages_alone
        mini_batch_N = mini_batch_of(rows.group, learner.mini_batches)
        cut = []
        for number in range(mini_batch_N.max() + 1):
            index = np.flatnonzero(mini_batch_N == number)
            part, most = select_rows(rows, index), learner.micro_batch_tokens
            packs = pack(part, advantages[index], most, step=step, skip_zero=skip_zero) or [empty_pack()]
            cut.append((packs, count_targets(part)))
        return cut

    def before(self, packs: list[PackedBatch]) -> list[PackedBatch]:
        """With the log-probs under the policy as it is, which all updates of the step are held close to."""
        with torch.no_grad():
            return [replace(one, start_logprobs=self.policy(one, self.sampling.drawn.temperature)[0]) for one in packs]

    def update(self, packs: list[PackedBatch], total: Denominators) -> tuple[float, float]:
        """One optimizer update: its loss, and the gradient norm before clipping."""
        learner, loss_sum, temperature = self.config.learner, 0.0, self.sampling.drawn.temperature
        balance = None
        if self.policy.routers is not None and learner.router_aux_loss_coef:
            balance = RouterBalance(self.policy.routers, learner.router_aux_loss_coef, lambda counts: counts)
            balance.count(packs, lambda one: self.policy(one, temperature))
        for one in packs:
            loss, _ = policy_loss(self.policy, one, total, learner.algorithm, temperature, self.start)
            if balance is not None:
                loss = loss + balance.term(one)
            loss.backward()
            loss_sum += loss.double().item()
        grad_norm = clip_gradients(list(self.policy.parameters()), learner.optimizer.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss_sum, grad_norm

    def weights(self) -> dict[str, torch.Tensor]:
        """The weights by their Hugging Face names."""
        return {name.removeprefix(PREFIX): param.detach() for name, param in self.policy.named_parameters()}

    def _start(self) -> PolicyModel:
        """The policy that the trained one is held to, or that teaches it."""
        folder = self.config.learner.algorithm.reference.path or self.folder
        return PolicyModel(load_model(folder, self.config.model.dtype).to(torch.float32))  # type: ignore[arg-type]

    def _make_engine(self) -> TorchEngine:
        rollout = self.config.rollout
        with threads(rollout.threads):
            model = load_model(self.folder, self.config.model.dtype)
            most = model.config.get_text_config().max_position_embeddings - rollout.sampling.max_new_tokens
            longest = check_prompts(self.task, self.tokenizer, most)
            engine = TorchEngine(
                model,
                Version(0, -1),
                slots=rollout.slots,
                max_length=longest + rollout.sampling.max_new_tokens,
                kv_bytes=rollout.kv_bytes,
                device=rollout.device,
                deterministic=rollout.batch_invariant,
                record_routes=self.config.learner.router_replay,
            )
            # It chooses how rows are multiplied, so it has to be that of a replica.
            engine.self_test(required=rollout.deterministic is True)
            return engine


def lay_out(step: int, samples: list[Sample], scores: list[Score]) -> RolloutRows:
    """The rows as the learner takes them: ragged, never padded."""
    parts = [part for s in samples for part in (s.prompt_ids, s.result.token_ids)]
    lengths = np.array([len(part) for part in parts])
    origin = np.repeat(np.tile([TokenOrigin.PROMPT, TokenOrigin.SAMPLED], len(samples)), lengths).astype(np.uint8)
    logprobs = np.zeros(len(origin), np.float32)
    logprobs[origin == TokenOrigin.SAMPLED] = np.concatenate([s.result.logprobs for s in samples])
    return RolloutRows(
        offsets=np.concatenate([[0], np.cumsum(lengths)[1::2]]),
        token_ids=np.concatenate(parts),
        token_origin=origin,
        rollout_logprobs=logprobs,
        token_steps=np.where(origin == TokenOrigin.SAMPLED, step, -1),
        group=np.array([s.group for s in samples]),
        sample_index=np.array([s.sample_index for s in samples]),
        rewards=np.array([np.nan if score.reward is None else score.reward for score in scores]),
        valid=np.array([score.status is ScoreStatus.OK for score in scores]),
        routes=np.concatenate(found)
        if (found := [s.result.routes for s in samples if s.result.routes is not None])
        else None,
    )


def main() -> None:
    """Print one line a step."""
    hold_standard_streams()
    config = load_args(Path(sys.argv[1]), sys.argv[2:])
    if config.rollout.keeps_rows_apart:
        # As the running system does for its parts; nothing was computed yet.
        os.environ.update(strict_variables(os.environ))
    for record in Reference(config).steps():
        print(
            f"step {record.step}  reward {record.reward_mean:.3f}  loss {record.loss:+.6f}  "
            f"gradient {record.grad_norm:.4f}  weights {record.digest}"
        )


if __name__ == "__main__":
    main()
