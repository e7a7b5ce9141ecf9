"""What the line of metrics of a step says of its batch: rewards, ages, lengths. Pure."""

from typing import Any

import numpy as np

from streamrl.algorithms.advantages.estimate import baseline_rows
from streamrl.buffers.rows.records import Lease
from streamrl.config import Config
from streamrl.services.learner.step_plan import overlong_penalties
from streamrl.types import LongArray


def lease_facts(lease: Lease, config: Config) -> dict[str, Any]:
    """By the names of `metrics.jsonl`."""
    sampled = lease.sampled_tokens > 0
    staleness = np.maximum(lease.step - lease.oldest_step[sampled], 0)
    rewards = lease.rewards[lease.valid & ~baseline_rows(lease.sample_index, config)]
    return {
        "reward/mean": float(rewards.mean()) if len(rewards) else None,
        "reward/std": float(rewards.std()) if len(rewards) else None,
        "reward/failed": int((~lease.valid).sum()),
        "reward/zero_variance_share": _zero_variance_share(lease),
        "reward/truncated_share": float(lease.truncated.mean()),
        "reward/overlong_mean": float(overlong_penalties(lease, config)[lease.valid].mean()),
        "staleness/mean": float(staleness.mean()) if len(staleness) else 0.0,
        "staleness/max": int(staleness.max(initial=0)),
        **_lengths(lease.sampled_tokens[sampled]),
    }


def _lengths(tokens_N: LongArray) -> dict[str, float]:
    """Of the rows of a step, in sampled tokens."""
    if not len(tokens_N):
        return {}
    figures = {"mean": float(tokens_N.mean()), "min": int(tokens_N.min()), "max": int(tokens_N.max())}
    return {f"length/{name}": value for name, value in {**figures, "sum": int(tokens_N.sum())}.items()}


def _zero_variance_share(lease: Lease) -> float:
    """Share of the groups whose scores are all equal, in each component where there are any: they teach nothing."""
    judged = lease.components if lease.components.shape[1] else lease.rewards[:, None]
    judged, groups = judged[lease.valid], lease.group[lease.valid]
    if not len(groups):
        return 0.0
    starts = np.flatnonzero(np.diff(groups, prepend=groups[0] - 1))
    equal = np.maximum.reduceat(judged, starts) == np.minimum.reduceat(judged, starts)
    return float(equal.all(axis=1).mean())
