"""One rank of a learner on seeded batches, for the tests: a program of its own, since a process is one rank.

    python learner_rank.py STORE RANK WORLD CHECKPOINTS OUT

Trains 20 steps; with several ranks it saves a checkpoint after 16. Then a fresh backend resumes from the checkpoint
and trains the last 4 again. Then a model is trained on two shares that is held to where it began, and another one is
warmed up on two shares, whatever the number of ranks. Then it gathers weights beside further steps. Last, one weight
of one rank's shard becomes NaN. OUT gets all of it as JSON.
"""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from streamrl.algorithms.advantages.outcome import ADVANTAGES
from streamrl.config.schema.algorithm import AlgorithmConfig, RejectionConfig
from streamrl.config.schema.learner import OptimizerConfig
from streamrl.config.schema.run import WarmupConfig
from streamrl.errors import NonFiniteError
from streamrl.ids import prompt_digest
from streamrl.learner.batch.balance import split_rows
from streamrl.learner.batch.mini_batch_cut import mini_batch_of
from streamrl.learner.batch.mini_batches import MiniBatch
from streamrl.learner.batch.packing import PackedBatch, pack
from streamrl.learner.batch.rows import count_targets, select_rows
from streamrl.learner.checkpoint import checkpoint
from streamrl.learner.checkpoint.digest import weight_digest
from streamrl.learner.fsdp import FsdpBackend, build
from streamrl.learner.model.sharding import ShardedPolicy
from streamrl.learner.objectives import nll_loss
from streamrl.learner.parallel.process_group import LearnerGroup, open_group
from streamrl.learner.references.frozen import FrozenPolicy
from streamrl.learner.supervised.warmup import Warmup, warmup_optimizer
from streamrl.models.tokenizer import load_tokenizer, write_character_tokenizer
from streamrl.tasks.base import Prompt
from streamrl.types import RolloutRows, Version

TOTAL_STEPS = 40
STEPS, SAVED_AT = 20, 16
BESIDE = 6
HELD_STEPS = 4
EVEN_SIZES = {"hidden_size": 32, "intermediate_size": 48, "head_dim": 16}
"""Each rank's part of each parameter is a multiple of 8 elements: the fused AdamW rounds what is over differently."""
GREETING = "rank 0 says \N{GREEK SMALL LETTER PI}"


def make_model(*, hidden_size: int = 24, intermediate_size: int = 35, head_dim: int = 8) -> Qwen3ForCausalLM:
    """A vocabulary of 19 and 3 heads of odd sizes: no parameter divides evenly over two ranks by luck."""
    torch.manual_seed(5)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=19,
            hidden_size=hidden_size,
            intermediate_size=intermediate_size,
            num_hidden_layers=2,
            num_attention_heads=3,
            num_key_value_heads=1,
            head_dim=head_dim,
            max_position_embeddings=64,
            tie_word_embeddings=True,
        )
    )


def make_batch(step: int, *, groups: int = 6, group_size: int = 4) -> RolloutRows:
    """Seeded groups with shared prompts, ragged answers and rewards that differ."""
    rng = np.random.default_rng([9, step])
    parts = []
    for _ in range(groups):
        prompt = rng.integers(0, 19, rng.integers(2, 7))
        for _ in range(group_size):
            parts += [prompt, rng.integers(0, 19, rng.integers(1, 9))]
    lengths = np.array([len(part) for part in parts])
    count, rows = int(lengths.sum()), groups * group_size
    return RolloutRows(
        offsets=np.concatenate([[0], np.cumsum(lengths)[1::2]]),
        token_ids=np.concatenate(parts).astype(np.int32),
        token_origin=np.repeat(np.tile([0, 1], rows), lengths).astype(np.uint8),
        rollout_logprobs=rng.normal(-3, 0.3, count).astype(np.float32),
        token_steps=np.full(count, step),
        group=np.repeat(np.arange(groups) + step * groups, group_size),
        sample_index=np.tile(np.arange(group_size), groups),
        rewards=rng.random(rows),
        valid=rng.random(rows) > 0.1,
    )


def make_backend(group: LearnerGroup, **sizes: int) -> FsdpBackend:
    return build(
        make_model(**sizes),
        optimizer=OptimizerConfig(lr=3e-3, warmup_steps=3, weight_decay=0.01, max_grad_norm=0.5),
        algorithm=AlgorithmConfig(),
        total_steps=TOTAL_STEPS,
        temperature=0.9,
        group=group,
    )


def make_held_backend(group: LearnerGroup) -> FsdpBackend:
    """Ratios, weights and rejections of rows, a bonus for entropy, and a price for leaving the first weights."""
    return build(
        make_model(**EVEN_SIZES),
        optimizer=OptimizerConfig(lr=3e-3, warmup_steps=3),
        algorithm=AlgorithmConfig(
            loss="gspo",
            proximal="rollout",
            correction_level="geometric",
            rejection=RejectionConfig(measure="k2", level="geometric", high=0.05),
            entropy_coef=0.01,
            kl_coef=0.1,
        ),
        total_steps=TOTAL_STEPS,
        temperature=0.9,
        group=group,
        reference=FrozenPolicy(lambda: make_model(**EVEN_SIZES), group, torch.float32),
    )


def packs_of(rows: RolloutRows, group: LearnerGroup, budget: int = 64) -> list[PackedBatch]:
    advantages = ADVANTAGES["grpo"](rows.rewards, rows.valid, rows.group)
    share = split_rows(rows.lengths(), rows.group, group.world_size, 24)[group.rank]
    return pack(select_rows(rows, share), advantages[share], budget)


def train(backend: FsdpBackend, steps: int) -> list[dict[str, float]]:
    metrics = []
    for _ in range(steps):
        rows = make_batch(backend.steps_done)
        metrics.append(backend.step(packs_of(rows, backend.group), count_targets(rows)))
    return metrics


def train_on_two_shares(
    backend: FsdpBackend, steps: int, *, mini_batches: int = 1, epochs: int = 1
) -> list[dict[str, float]]:
    """Two packs a share, so that the order of sums within a share counts too."""
    metrics = []
    for _ in range(steps):
        rows = make_batch(backend.steps_done)
        advantages = ADVANTAGES["grpo"](rows.rewards, rows.valid, rows.group)
        mini_batch_N = mini_batch_of(rows.group, mini_batches)
        parts = [np.flatnonzero(mini_batch_N == number) for number in range(mini_batches)]
        cut = [_two_shares(select_rows(rows, part), advantages[part], backend.group) for part in parts]
        metrics.append(backend.step_batch(cut, epochs))
    return metrics


def _two_shares(rows: RolloutRows, advantages: np.ndarray, group: LearnerGroup) -> MiniBatch:
    mine = split_rows(rows.lengths(), rows.group, 2, 24)[group.rank :: group.world_size]
    return MiniBatch([pack(select_rows(rows, share), advantages[share], 64) for share in mine], count_targets(rows))


class Doubled:
    """`c=` -> `cc`: eight prompts."""

    name = "doubled"
    num_train = 8
    num_held_out = 0

    def train(self, index: int) -> Prompt:
        return Prompt(prompt_digest(self.name, index), f"{chr(97 + index)}=")

    def held_out(self, index: int) -> Prompt:
        raise IndexError(index)

    def demonstration(self, prompt: Prompt) -> str:
        return 2 * prompt.text[0]

    def fingerprint(self) -> str:
        return self.name


def warm_up_on_two_shares(group: LearnerGroup, folder: Path) -> str:
    """The digest of the weights that six steps leave."""
    folder.mkdir()
    write_character_tokenizer("abcdefgh=", 16, folder)
    policy = ShardedPolicy(make_model(**EVEN_SIZES), group, torch.float32)
    settings = WarmupConfig(max_steps=6, batch_size=6, lr=1e-2, eval_every=3)
    Warmup(
        FsdpBackend(policy, nll_loss, warmup_optimizer(settings), settings.max_steps),
        settings,
        Doubled(),
        load_tokenizer(folder),
        row_rank=group.ranks.row_rank(group.rank),
        hidden_size=policy.hidden_size,
        evaluate=lambda: 0.0,
        held_apart=(),
        seed=0,
        micro_batch_tokens=8,
        shares=2,
    ).run()
    return policy.weight_digest()


def gather_beside(backend: FsdpBackend) -> list[tuple[str, str]]:
    """The weights of snapshots, gathered in another thread while steps are trained; each with what it should be."""
    found = []
    with ThreadPoolExecutor(1) as thread:
        for _ in range(BESIDE):
            before, snapshot = backend.weight_digest(), backend.policy.snapshot()
            gathering = thread.submit(lambda taken: weight_digest(backend.policy.gather(taken)), snapshot)
            train(backend, 1)
            found.append((gathering.result(), before))
    return found


def break_on_last_rank(backend: FsdpBackend) -> dict[str, object]:
    """One NaN weight in one rank's shard; what a step says, and that it changed nothing."""
    rows, group = make_batch(0), backend.group
    name = "model.norm.weight"
    if group.rank == group.world_size - 1:
        with torch.no_grad():
            backend.policy.shards[name][-1] = float("nan")
    before = {key: value.detach().clone() for key, value in backend.policy.shards.items()}
    raised = []
    for act in (
        lambda: backend.step(packs_of(rows, group), count_targets(rows)),
        backend.weight_digest,
    ):
        try:
            act()
        except NonFiniteError as error:
            raised.append(str(error))
    same = all(torch.equal(before[k], v) for k, v in backend.policy.shards.items() if k != name)
    return {"raised": raised, "same": same, "steps_done": backend.steps_done}


def save(backend: FsdpBackend, root: Path) -> None:
    snapshot = checkpoint.Snapshot(
        Version(0, backend.steps_done), backend.state_tensors(), ledger_position=1, extra=backend.state_extra()
    )
    if backend.group.rank == 0:
        checkpoint.save(root, snapshot, keep=1)
    backend.group.wait_for_first()


def main(store: str, rank: str, world: str, checkpoints: str, out: str) -> None:
    torch.set_num_threads(1)
    group = open_group(int(rank), int(world), Path(store), device=torch.device("cpu"), timeout_s=60)
    backend, root = make_backend(group), Path(checkpoints)
    metrics = train(backend, SAVED_AT)
    if group.world_size > 1:
        save(backend, root)
    metrics += train(backend, STEPS - SAVED_AT)
    resumed, info = make_backend(group), checkpoint.find_newest(root).newest
    assert info is not None
    resumed.load_state(info.tensor, info.extra)
    shared = make_backend(group, **EVEN_SIZES)
    shared_metrics = train_on_two_shares(shared, STEPS)
    held = make_held_backend(group)
    held_metrics = train_on_two_shares(held, HELD_STEPS)
    several = make_backend(group, **EVEN_SIZES)
    several_metrics = train_on_two_shares(several, HELD_STEPS, mini_batches=2, epochs=2)
    heard = group.broadcast_bytes(GREETING.encode() if group.rank == 0 else None).decode()
    result = {
        "metrics": metrics,
        "digest": backend.weight_digest(),
        "resumed_metrics": train(resumed, STEPS - SAVED_AT),
        "resumed_digest": resumed.weight_digest(),
        "shared_metrics": shared_metrics,
        "shared_digest": shared.weight_digest(),
        "held_metrics": held_metrics,
        "held_digest": held.weight_digest(),
        "several_metrics": several_metrics,
        "several_digest": several.weight_digest(),
        "warm_digest": warm_up_on_two_shares(group, Path(out).with_suffix(".tokenizer")),
        "heard": heard,
        "beside": gather_beside(backend),
        "broken": break_on_last_rank(resumed),
    }
    Path(out).write_text(json.dumps(result), encoding="utf-8")
    group.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
