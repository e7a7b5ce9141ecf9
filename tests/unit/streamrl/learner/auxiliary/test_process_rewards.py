"""Token rewards over packs and shares: the cut has no part in them, and rows that are not trained have none."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.learner.turns import make_turns

from streamrl.algorithms.advantages.outcome import advantage_of
from streamrl.config.schema.learner import PrimeConfig
from streamrl.learner.auxiliary.process_rewards import with_process_advantages
from streamrl.learner.batch.balance import split_rows
from streamrl.learner.batch.packing import pack
from streamrl.learner.batch.rows import row_targets, select_rows
from streamrl.learner.batch.scored_batch import Part, ScoredTokens
from streamrl.types import RolloutRows

SEEDS = range(6)
CONFIGS = (PrimeConfig(), PrimeConfig(gamma=0.9, normalise=True, process_coef=2.0, outcome_coef=0.5))


def batch(seed: int) -> tuple[RolloutRows, np.ndarray]:
    """Rows in groups of up to four, and a reward for each of their tokens."""
    print(f"seed {seed}")
    rows = make_turns(seed, step=0, group_size=4)
    return rows, np.random.default_rng(seed).normal(0.0, 0.4, len(rows.token_ids))


def advantages(
    rows: RolloutRows, rewards_T: np.ndarray, config: PrimeConfig, shares: int = 1, most: int = 10**4
) -> tuple[dict[tuple[int, int], list[float]], dict[str, float]]:
    """Of each row, by group and sample, with the batch cut in a way; and the facts."""
    outcomes_N = advantage_of("prime", rows.rewards, rows.valid, rows.group, row_targets(rows))
    judged = []
    for places in split_rows(rows.lengths(), rows.group, shares, 24):
        part = Part(select_rows(rows, places), places)
        packs = pack(part.rows, outcomes_N[places], most)
        judged.append([ScoredTokens(one, given(rows, rewards_T, one, part), part) for one in packs])
    packs, facts = with_process_advantages(judged, config, lambda sums: sums, rows.num_rows)
    found: dict[tuple[int, int], list[float]] = {}
    for share, made in zip(judged, packs, strict=True):
        for (_, _, part), one in zip(share, made, strict=True):
            for row, value in zip(one.rows.tolist(), one.advantages.tolist(), strict=True):
                found.setdefault((part.rows.group[row], part.rows.sample_index[row]), []).append(value)
    return found, facts


def given(rows: RolloutRows, rewards_T: np.ndarray, one, part: Part) -> torch.Tensor:
    """The rewards of a pack's targets: those of the row's first tokens, whichever they are."""
    counts = np.diff(one.row_offsets())
    starts = rows.offsets[part.places[one.rows.numpy()[one.row_offsets()[:-1]]]]
    place = np.concatenate([start + np.arange(n) for start, n in zip(starts, counts, strict=True)])
    return torch.from_numpy(rewards_T[place])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize(("shares", "most"), [(1, 25), (2, 10**4), (3, 30), (7, 25)])
def test_no_bit_depends_on_the_cut_into_packs_and_shares(
    seed: int, config: PrimeConfig, shares: int, most: int
) -> None:
    rows, rewards = batch(seed)
    whole, facts = advantages(rows, rewards, config)
    cut, told = advantages(rows, rewards, config, shares, most)
    assert cut == whole
    assert told == facts


@pytest.mark.parametrize("seed", SEEDS)
def test_whitened_advantages_have_mean_0_and_variance_1_over_all_shares(seed: int) -> None:
    rows, rewards = batch(seed)
    found, _ = advantages(rows, rewards, PrimeConfig(whiten=True), shares=3, most=40)
    every = [value for row in found.values() for value in row]
    assert np.mean(every) == pytest.approx(0.0, abs=1e-6)
    assert np.var(every, ddof=1) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_row_whose_score_failed_is_as_if_it_were_not_there(seed: int) -> None:
    rows, rewards = batch(seed)
    rows.valid[5] = False
    kept = np.flatnonzero(rows.valid)
    tokens = np.concatenate([np.arange(*rows.offsets[row : row + 2]) for row in kept])
    assert (
        advantages(rows, rewards, CONFIGS[1])[0] == advantages(select_rows(rows, kept), rewards[tokens], CONFIGS[1])[0]
    )


def test_normalised_rewards_come_to_1_at_most_from_any_token_to_the_end() -> None:
    rows, rewards = batch(1)
    config = PrimeConfig(normalise=True, outcome_coef=0.0)
    plain, _ = advantages(rows, rewards, config)
    larger, _ = advantages(rows, 1000.0 * rewards, config)
    for name, row in plain.items():
        assert larger[name] == pytest.approx(row, rel=1e-4, abs=1e-5)


def test_accuracy_counts_rows_by_the_sign_of_their_sum_and_half_of_those_that_say_nothing() -> None:
    rows = make_turns(2, step=0, groups=1, group_size=4)
    rows = replace(rows, valid=np.ones(4, bool), rewards=np.array([1.0, 0.0, 1.0, 0.5]))
    signs = np.repeat([0.3, 0.3, 0.0, 0.3], rows.lengths())
    _, facts = advantages(rows, signs, PrimeConfig())
    assert facts["prime/accuracy"] == (1.0 + 0.0 + 0.5 + 0.5) / 4
    counts = row_targets(rows)
    assert facts["prime/reward_mean"] == pytest.approx(0.3 * (counts[0] + counts[1] + counts[3]) / counts.sum())
