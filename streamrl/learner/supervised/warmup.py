"""Supervised warm-up: the policy learns a task's own demonstrations until it scores well enough to explore.

Guarantees: the same seed, data and settings give the same weights, on any number of ranks up to rounding (to the
bit where the number of shares is given, see `learner.shares`); items that are held apart for the score are never
trained on; it stops at the first look that reaches the target. The prompt is context, the demonstration and the end
token are trained. Knows nothing of how the score is made: a function is given.
"""

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from streamrl.config.schema.learner import OptimizerConfig
from streamrl.config.schema.run import WarmupConfig
from streamrl.errors import ConfigError
from streamrl.learner.backend import LearnerBackend
from streamrl.learner.batch.balance import split_rows
from streamrl.learner.batch.mini_batches import MiniBatch
from streamrl.learner.batch.packing import pack
from streamrl.learner.batch.rows import count_targets, select_rows
from streamrl.learner.parallel.rank_mesh import RowRank, own_parts
from streamrl.models.tokenizer import TextTokenizer
from streamrl.tasks.base import DemonstratedTask, Prompt, turns_of
from streamrl.tasks.prompts import prompt_ids
from streamrl.types import IntArray, LongArray, RolloutRows, TokenOrigin


@dataclass(frozen=True, slots=True)
class WarmupProgress:
    """One step: its number (from 1), mean negative log-likelihood in nats a token, and the score if it was
    looked at after this step. Step 0 is the look before the first; its loss is NaN."""

    step: int
    loss: float
    score: float | None


@dataclass(frozen=True, slots=True)
class WarmupResult:
    """How it ended: steps taken, last score, whether the target was reached."""

    steps: int
    score: float
    reached: bool


def warmup_optimizer(config: WarmupConfig) -> OptimizerConfig:
    """The optimizer of a warm-up: a rate that decays from its first step on."""
    return OptimizerConfig(lr=config.lr, warmup_steps=0, decay="linear", min_lr_ratio=config.min_lr_ratio)


class Demonstrations(Protocol):
    """What a warm-up learns from."""

    def rows(self, items: LongArray, /) -> RolloutRows:
        """Rows for these training items, a group for each. Every rank gets the same."""
        ...


class Warmup:
    """One supervised phase of a policy, by whatever backend trains it.

    Example:
        backend = FsdpBackend(policy, nll_loss, warmup_optimizer(config.warmup), config.warmup.max_steps)
        result = Warmup(backend, config.warmup, task, tokenizer, row_rank=row_rank, hidden_size=policy.hidden_size,
                        evaluate=greedy_score, held_apart=range(256), seed=0, micro_batch_tokens=16384).run()
    """

    def __init__(
        self,
        backend: LearnerBackend,
        config: WarmupConfig,
        task: DemonstratedTask,
        tokenizer: TextTokenizer,
        *,
        row_rank: RowRank,
        hidden_size: int,
        evaluate: Callable[[], float],
        held_apart: Collection[int],
        seed: int,
        micro_batch_tokens: int,
        shares: int | None = None,
        demonstrations: Demonstrations | None = None,
    ) -> None:
        """backend: fresh, of `nll_loss` and `warmup_optimizer`. row_rank: whose rows this rank has. hidden_size: of the
        model; shares of a batch are balanced by it. evaluate: the greedy score in [0, 1] of the policy as it is, on the
        training items `held_apart`. With several ranks each calls it and each must get the same number. shares: parts
        of a batch over all ranks, a multiple of their number; one for each data rank when None. demonstrations: rows of
        the training items, where they are not the task's texts behind its prompts. Raises ConfigError when no training
        item is left for the update."""
        apart = set(held_apart)
        self._items = np.array([i for i in range(task.num_train) if i not in apart], dtype=np.int64)
        if not len(self._items):
            raise ConfigError(
                f"warm-up has nothing to train on: all {task.num_train} training items of {task.name} are "
                "held apart for its score; hold fewer apart"
            )
        self._backend = backend
        self._row_rank = row_rank
        self._hidden_size = hidden_size
        self._config = config
        self._evaluate = evaluate
        self._seed = seed
        self._micro_batch_tokens = micro_batch_tokens
        self._num_shares = shares or row_rank.data_size
        self._demonstrations = demonstrations or _Demonstrations(task, tokenizer)

    def run(self, report: Callable[[WarmupProgress], None] = lambda _progress: None) -> WarmupResult:
        """Train until the target score or the last step. Collective. `report` sees every step."""
        score = self._evaluate()
        report(WarmupProgress(0, math.nan, score))
        batches = batch_items(self._items, self._config.batch_size, self._seed)
        step = 0
        while step < self._config.max_steps and score < self._config.target_score:
            loss = self._step(next(batches))
            step += 1
            looked = step % self._config.eval_every == 0 or step == self._config.max_steps
            if looked:
                score = self._evaluate()
            report(WarmupProgress(step, loss, score if looked else None))
        return WarmupResult(step, score, score >= self._config.target_score)

    def _step(self, items: LongArray) -> float:
        rows = self._demonstrations.rows(items)
        shares = split_rows(rows.lengths(), rows.group, self._num_shares, self._hidden_size)
        own = own_parts(len(shares), self._row_rank.data_rank, self._row_rank.data_size)
        mine = [select_rows(rows, shares[number]) for number in own]
        packs = [pack(part, np.zeros(part.num_rows), self._micro_batch_tokens) for part in mine]
        return self._backend.step_batch([MiniBatch(packs, count_targets(rows))])["loss/policy"]


class _Demonstrations:
    """A task's demonstrations as token rows, each encoded once."""

    def __init__(self, task: DemonstratedTask, tokenizer: TextTokenizer) -> None:
        self._task = task
        self._tokenizer = tokenizer
        self._encoded: dict[int, tuple[IntArray, IntArray]] = {}

    def rows(self, items: LongArray) -> RolloutRows:
        """One row for each item; each is a group of its own, and its log-probs are 0."""
        pairs = [self._encode(item) for item in items.tolist()]
        parts = [part for pair in pairs for part in pair]
        lengths = np.array([len(part) for part in parts], dtype=np.int64)
        origins = np.tile(np.array([TokenOrigin.PROMPT, TokenOrigin.SAMPLED], np.uint8), len(pairs))
        tokens = np.concatenate(parts)
        ends = np.cumsum(lengths)[1::2]
        return RolloutRows(
            offsets=np.concatenate([np.zeros(1, np.int64), ends]),
            token_ids=tokens,
            token_origin=np.repeat(origins, lengths),
            rollout_logprobs=np.zeros(len(tokens), np.float32),
            token_steps=np.full(len(tokens), -1, np.int64),
            group=np.arange(len(items)),
            sample_index=np.zeros(len(items), np.int64),
            rewards=np.zeros(len(items)),
            valid=np.ones(len(items), bool),
        )

    def _encode(self, item: int) -> tuple[IntArray, IntArray]:
        if item not in self._encoded:
            prompt = self._task.train(item)
            answer = self._tokenizer.encode(self._text(prompt), add_special_tokens=False)
            ended = np.append(answer, self._tokenizer.eos_token_ids[0]).astype(np.int32)
            self._encoded[item] = (prompt_ids(prompt, self._tokenizer), ended)
        return self._encoded[item]

    def _text(self, prompt: Prompt) -> str:
        turns = turns_of(self._task.demonstration(prompt))
        if len(turns) != 1:
            raise ConfigError(
                f"task {self._task.name!r} demonstrates {len(turns)} turns, which take an environment; set "
                "environment.name, or warmup.max_steps = 0"
            )
        return turns[0]


def batch_items(items: LongArray, batch_size: int, seed: int) -> Iterator[LongArray]:
    """Endless batches of `batch_size` items: pass after pass over all of them, each in a seeded order of
    its own. A batch may end one pass and begin the next."""
    waiting, data_pass = np.zeros(0, np.int64), 0
    while True:
        while len(waiting) < batch_size:
            order = np.random.default_rng([seed, data_pass]).permutation(len(items))
            waiting, data_pass = np.concatenate([waiting, items[order]]), data_pass + 1
        yield waiting[:batch_size]
        waiting = waiting[batch_size:]
