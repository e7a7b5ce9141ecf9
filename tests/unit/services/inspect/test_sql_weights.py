"""`advantage` and `loss_weight` of `streamrl sql`: what the learner's plan has of the same rows, to the bit."""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from support.learner.small_lease import lease

from streamrl.algorithms.aggregation import AGGREGATIONS, Denominators
from streamrl.buffers.ledger.facts import LedgerFacts
from streamrl.buffers.recovery.row_tables import ROLLOUTS_TABLE
from streamrl.buffers.rows.records import ACCEPTED, Lease
from streamrl.config import Config
from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.learner import LearnerConfig, OverlongConfig
from streamrl.config.schema.rollout import RolloutConfig, SamplingConfig
from streamrl.services.inspect.sql_tables import weights
from streamrl.services.learner.step_plan import StepPlan, make_plan

SEEDS = range(8)
STEPS = 3
NAMES = ("correct", "format")

SHAPED = OverlongConfig(buffer=8, penalty=0.5)
MASKED = OverlongConfig(mask_truncated=True)
BOTH = OverlongConfig(buffer=8, penalty=0.5, mask_truncated=True)
BY_ROW = {"aggregation": "seq_mean_token_mean"}
BY_HORIZON = {"aggregation": "seq_mean_token_sum_norm", "horizon": 16}

SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "as they are": ({}, {}),
    "shaped rewards": ({}, {"overlong": SHAPED}),
    "cut off": ({}, {"overlong": MASKED}),
    "both": ({}, {"overlong": BOTH}),
    "in mini-batches": (BY_ROW, {"overlong": BOTH, "mini_batches": 3}),
    "by horizon": (BY_HORIZON, {"overlong": BOTH}),
    "in the loss": ({"kl_coef": 0.1, "kl_in": "loss"}, {"overlong": BOTH}),
    "by length": ({"advantage": "opo"}, {"overlong": BOTH}),
    "over the batch": ({"advantage": "reinforce_pp"}, {"overlong": BOTH}),
    "over group and batch": ({"advantage": "reinforce_pp_baseline"}, {"overlong": BOTH}),
    "of components": ({"advantage": "gdpo", "components": {"format": 0.5, "correct": 1.0}}, {"overlong": MASKED}),
    "of success": ({"advantage": "maxrl"}, {"overlong": MASKED}),
    "against a greedy one": ({"advantage": "remax"}, {"overlong": BOTH, "mini_batches": 2}),
}


def configured(algorithm: dict[str, Any], learner: dict[str, Any]) -> Config:
    rollout = RolloutConfig(group_size=4, sampling=SamplingConfig(max_new_tokens=16))
    return Config(rollout=rollout, learner=LearnerConfig(algorithm=AlgorithmConfig(**algorithm), **learner))


def batches(seed: int, config: Config) -> list[Lease]:
    """A lease for each of a few steps: groups of 1 to 4 samples of one or two branches each, some failed, some without
    a token, some cut off."""
    print(f"seed {seed}")
    random, found = np.random.default_rng(seed), []
    for step in range(STEPS):
        keys = [
            (7 * (10 * step + group), sample, branch)
            for group in range(int(random.integers(1, 9)))
            for sample in sorted(random.choice(4, int(random.integers(1, 5)), replace=False).tolist())
            for branch in range(int(random.integers(1, 3)))
        ]
        group, sample, branch = np.array(keys).T
        one = replace(lease(rows=len(keys), seed=100 * seed + step), step=step, group=group, sample_index=sample)
        components = np.where(one.valid[:, None], random.integers(0, 3, (len(keys), 2)) / 2.0, np.nan)
        chosen = [NAMES.index(name) for name in config.learner.algorithm.component_names]
        found.append(replace(one, branch=branch.astype(np.int32), components=components[:, chosen]))
    return found


def logged(leases: list[Lease], config: Config) -> tuple[pa.Table, LedgerFacts]:
    """The same rows as the log has them."""
    names = config.learner.algorithm.component_names
    columns: dict[str, Any] = {
        "group_number": [one.group for one in leases],
        "sample_index": [one.sample_index for one in leases],
        "branch": [one.branch for one in leases],
        "sampled_tokens": [one.sampled_tokens for one in leases],
        "step": [np.full(one.num_rows, one.step + 1) for one in leases],
        "status": [np.where(one.valid, "ok", "failed") for one in leases],
        "finish_reason": [np.where(one.truncated, "length", "stop") for one in leases],
    }
    columns = {name: np.concatenate(parts) for name, parts in columns.items()}
    valid, rewards = (np.concatenate([getattr(one, name) for one in leases]) for name in ("valid", "rewards"))
    columns["reward"] = pa.array(rewards, pa.float64(), mask=~valid)
    components = np.concatenate([one.components for one in leases]).tolist()
    columns["components"] = [
        list(zip(names, row, strict=True)) if ok else None for row, ok in zip(components, valid, strict=True)
    ]
    table = pa.table({name: pa.array(values, ROLLOUTS_TABLE.field(name).type) for name, values in columns.items()})
    rows = np.zeros(table.num_rows, ACCEPTED)
    rows["number"] = columns["group_number"]
    steps = {one.step: np.unique(one.group).tolist() for one in leases}
    return table, LedgerFacts(next_step=STEPS, steps=steps, rows=rows, position=np.arange(len(rows)))


def planned(plan: StepPlan, given: Lease, config: Config) -> np.ndarray:
    """float64 [2, N]: of each row what the learner trains it with."""
    algorithm, expected = config.learner.algorithm, np.zeros((2, given.num_rows))
    expected[0] = np.frombuffer(plan.advantages)
    mini_batch = np.frombuffer(plan.mini_batch, np.int64)
    for row in np.flatnonzero(np.frombuffer(plan.valid, np.uint8) & (given.sampled_tokens > 0)):
        total = Denominators(plan.total_tokens[mini_batch[row]], plan.total_rows[mini_batch[row]])
        # Of float32, as in the loss.
        tokens = torch.tensor([float(given.sampled_tokens[row])])
        of_token = AGGREGATIONS[algorithm.aggregation](tokens, total, algorithm.horizon).item()
        expected[1, row] = expected[0, row] * of_token
    return expected


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", SETTINGS)
def test_they_are_those_of_the_plan_to_the_bit(name: str, seed: int) -> None:
    config = configured(*SETTINGS[name])
    leases = batches(seed, config)
    table, facts = logged(leases, config)
    expected = np.concatenate([planned(make_plan(one, config, 64), one, config) for one in leases], axis=1)
    order = np.random.default_rng(seed).permutation(table.num_rows)
    np.testing.assert_array_equal(weights(table.take(order), facts, config), expected[:, order])


def test_the_batches_have_what_tells_the_settings_apart() -> None:
    """Else the test above could not fail."""
    found = {}
    for name, setting in SETTINGS.items():
        config = configured(*setting)
        found[name] = np.concatenate([weights(*logged(batches(seed, config), config), config)[1] for seed in SEEDS])
    for name in ("shaped rewards", "cut off", "both"):
        assert (found[name] != found["as they are"]).any(), name
    assert (found["both"] != found["shaped rewards"]).any()
    assert (found["both"] != found["cut off"]).any()


UNKNOWN = {
    "a price in the reward": {"kl_coef": 0.1, "kl_in": "reward", "kl_estimator": "k1"},
    "a teacher": {"loss": "opd"},
    "a critic": {"advantage": "gae"},
    "rewards of tokens": {"advantage": "prime"},
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_the_log_does_not_say_is_null(name: str) -> None:
    config = configured(UNKNOWN[name], {})
    table, facts = logged(batches(0, config), config)
    assert np.isnan(weights(table, facts, config)).all()
    # As it is with a coefficient of 0.
    nothing = configured({"kl_coef": 0.0, "kl_in": "reward"}, {})
    assert np.isfinite(weights(table, facts, nothing)).all()
