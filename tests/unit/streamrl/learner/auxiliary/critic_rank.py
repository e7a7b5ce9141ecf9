"""One rank of a policy with a critic, for the tests: a program of its own, since a process is one rank.

    python critic_rank.py STORE RANK WORLD OUT

Trains on two shares, whatever the number of ranks; then on as many shares as ranks, with models whose sizes divide by
nothing. Last, a value of a row of the last rank becomes NaN. OUT gets what each gave, as JSON.
"""

import json
import sys
from functools import partial
from pathlib import Path

import numpy as np
import torch
from support.learner.turns import make_model, make_turns

from streamrl.algorithms.advantages.outcome import advantage_of
from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.learner import CriticConfig, OptimizerConfig
from streamrl.errors import NonFiniteError
from streamrl.learner.auxiliary.auxiliary import step_of_both
from streamrl.learner.auxiliary.critic import Critic
from streamrl.learner.auxiliary.kl_penalty import TokenDivergences, referred
from streamrl.learner.auxiliary.on_fsdp import critic_on_fsdp
from streamrl.learner.batch.balance import split_rows
from streamrl.learner.batch.mini_batch_cut import mini_batch_of
from streamrl.learner.batch.mini_batches import MiniBatch
from streamrl.learner.batch.packing import pack
from streamrl.learner.batch.rows import count_targets, row_targets, select_rows
from streamrl.learner.batch.scored_batch import Part
from streamrl.learner.checkpoint.digest import weight_digest
from streamrl.learner.fsdp import FsdpBackend, on_policy
from streamrl.learner.model.sharding import ShardedPolicy
from streamrl.learner.model.value_model import HEAD, ShardedCritic, decoder_of
from streamrl.learner.parallel.process_group import LearnerGroup, open_group
from streamrl.learner.references.frozen import FrozenPolicy
from streamrl.types import RolloutRows

TOTAL_STEPS = 40
STEPS = 5
MINI_BATCHES = EPOCHS = 2
EVEN_SIZES = {"hidden_size": 32, "intermediate_size": 48, "head_dim": 16}
OPTIMIZER = OptimizerConfig(lr=3e-3, warmup_steps=3, weight_decay=0.01, max_grad_norm=0.5)
CRITIC = CriticConfig(warmup_steps=1, value_clip=0.05, policy_lambda=0.9, gamma=0.98, optimizer=OPTIMIZER)


def make_both(group: LearnerGroup, paid: float = 0.0, **sizes: int) -> tuple[FsdpBackend, Critic, ShardedCritic]:
    """paid: what a nat of divergence from a model of other weights costs a token."""
    policy = on_policy(
        ShardedPolicy(make_model(**sizes), group, torch.float32),
        optimizer=OPTIMIZER,
        algorithm=AlgorithmConfig(advantage="gae"),
        total_steps=TOTAL_STEPS,
        temperature=0.9,
        idle_steps=CRITIC.warmup_steps,
    )
    model = ShardedCritic(decoder_of(make_model(**sizes)), group, torch.float32)
    reference = FrozenPolicy(lambda: make_model(hidden_size=32), group, torch.float32)
    asked = partial(referred, reference, temperature=0.9, group=group)
    divergences = TokenDivergences(asked, "k3", paid, group) if paid else None
    return policy, critic_on_fsdp(model, CRITIC, TOTAL_STEPS, divergences=divergences), model


def cut_of(
    rows: RolloutRows, shares: int, group: LearnerGroup, advantage: str = "gae"
) -> tuple[list[MiniBatch], list[list[Part]]]:
    """This rank's part; two packs a share and more."""
    advantages_N = advantage_of(advantage, rows.rewards, rows.valid, rows.group, row_targets(rows))
    number_N, each = mini_batch_of(rows.group, MINI_BATCHES), shares // group.world_size
    mini_batches, parts = [], []
    for number in range(MINI_BATCHES):
        places = np.flatnonzero(number_N == number)
        whole = select_rows(rows, places)
        split = split_rows(whole.lengths(), whole.group, shares, 24)[group.rank * each : (group.rank + 1) * each]
        mine = [select_rows(whole, share) for share in split]
        own = [Part(part, places[share]) for part, share in zip(mine, split, strict=True)]
        packs = [pack(part.rows, advantages_N[part.places], 24) for part in own]
        mini_batches.append(MiniBatch(packs, count_targets(whole)))
        parts.append(own)
    return mini_batches, parts


def train(policy: FsdpBackend, critic: Critic, shares: int, group: LearnerGroup) -> list[dict[str, float]]:
    metrics = []
    for step in range(STEPS):
        mini_batches, parts = cut_of(make_turns(11, step, step=step), shares, group)
        metrics.append(step_of_both(policy, critic, mini_batches, parts, EPOCHS))
    return metrics


def break_last_rank(
    policy: FsdpBackend, critic: Critic, model: ShardedCritic, group: LearnerGroup
) -> dict[str, object]:
    """What a step says of a token that only a row of the last rank has, and for which the critic has no number."""
    rows = make_turns(12, step=STEPS)
    mini_batches, parts = cut_of(rows, group.world_size, group)
    for mini_batch in mini_batches:
        for packed in mini_batch.shares[0]:
            packed.ids[packed.ids == 18] = 17
    if group.rank == group.world_size - 1:
        mini_batches[0].shares[0][0].ids[0] = 18
    whole = model.whole("embed_tokens.weight", model.shards["embed_tokens.weight"]).clone()
    whole[18] = float("nan")
    with torch.no_grad():
        model.shards["embed_tokens.weight"].copy_(model.shard_of("embed_tokens.weight", whole))
    before = policy.weight_digest()
    try:
        step_of_both(policy, critic, mini_batches, parts, EPOCHS)
    except NonFiniteError as error:
        return {"raised": str(error), "same": policy.weight_digest() == before}
    return {"raised": "", "same": False}


def main(store: str, rank: str, world: str, out: str) -> None:
    torch.set_num_threads(1)
    group = open_group(int(rank), int(world), Path(store), device=torch.device("cpu"), timeout_s=60)
    even, even_critic, even_model = make_both(group, **EVEN_SIZES)
    odd, odd_critic, odd_model = make_both(group)
    shared = train(even, even_critic, 2, group)
    held, held_critic, _ = make_both(group, paid=0.2, **EVEN_SIZES)
    result = {
        "shared_metrics": shared,
        "shared_digests": [even.weight_digest(), even_model.weight_digest()],
        "state_digest": weight_digest(even_critic.state_tensors()),
        "head": even_model.whole(HEAD, even_model.shards[HEAD]).abs().max().item(),
        "held_metrics": train(held, held_critic, 2, group),
        "held_digest": held.weight_digest(),
        "odd_metrics": train(odd, odd_critic, group.world_size, group),
        "broken": break_last_rank(odd, odd_critic, odd_model, group),
    }
    Path(out).write_text(json.dumps(result), encoding="utf-8")
    group.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
