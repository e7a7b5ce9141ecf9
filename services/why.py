"""Why a run is as fast, and learns as well, as it does: findings in words, each with the figure that says so.

Pure: rows of `metrics.jsonl` in, findings out. A figure that a row does not carry gives no finding, never a
guess.
"""

import math
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

import msgspec

from streamrl.config.algorithm_rules import WITHOUT_GROUPS
from streamrl.config.schema import Config

Row = dict[str, Any]
# The newest rows, on which the findings rest: long enough for a share, short enough to be the present.
WINDOW = 100
# Below this share of waiting, the learner itself is what takes the time.
BUSY = 0.10
# Share of the replicas' time without work, from which on admission holds them back.
IDLE = 0.10
# Share of failed scores that is worth a word.
FAILED = 0.01
# Groups of which all rollouts have one reward teach nothing.
FLAT_GROUPS = 0.8
# Bounds from which engine and learner disagree more than rounding explains.
MISMATCH_KL = 0.05
CLIPPED = 0.3


class Finding(msgspec.Struct, frozen=True):
    """kind: a stable word for scripts. text: the sentence. figures: the numbers in it, by metric key."""

    kind: str
    text: str
    figures: dict[str, float]


def explain(rows: Sequence[Row], config: Config) -> list[Finding]:
    """What bounds the run's speed, then what ails its learning; worst first within each. Empty without
    rows.
    """
    recent = list(rows)[-WINDOW:]
    if not recent:
        return []
    found = [look(recent, config) for look in _LOOKS]
    return [finding for finding in found if finding is not None]


def _bound_by(rows: list[Row], config: Config) -> Finding | None:
    """The one part that the others wait for."""
    step, wait = _mean(rows, "time/step"), _mean(rows, "time/wait")
    if not step or wait is None:
        return None
    share = wait / step
    figures = {"time/wait": wait, "time/step": step, "share": share}
    if share < BUSY:
        return _learner_bound(rows, figures)
    idle, unscored = _mean(rows, "rollout/idle_share"), _mean(rows, "queue/unscored")
    waits = f"the learner waits {share:.0%} of its time"
    if unscored is not None and unscored > config.rollouts_per_step:
        text = f"{waits} and {unscored:.0f} finished rollouts wait for their score; raise reward.workers"
        return Finding("bound by reward", text, {**figures, "queue/unscored": unscored})
    if idle is not None and idle >= IDLE:
        text = (
            f"{waits} while replicas stand idle {idle:.0%} of theirs: they may not start more under "
            f"max_staleness = {config.learner.max_staleness}; raise learner.max_staleness or rollout.slots"
        )
        return Finding("bound by admission", text, {**figures, "rollout/idle_share": idle})
    busy = "" if idle is None else f" and replicas are idle only {idle:.0%} of theirs"
    autoscaling = config.rollout.autoscaling
    number = "rollout.autoscaling.max_replicas" if autoscaling.enabled else "rollout.replicas"
    text = f"{waits}{busy}: generation is the slowest; raise {number}, rollout.threads or rollout.slots"
    return Finding("bound by generation", text, figures)


def _learner_bound(rows: list[Row], figures: dict[str, float]) -> Finding:
    keys = {key for row in rows for key in row if key.startswith("time/")} - {"time/step", "time/wait"}
    means = {key: mean for key in sorted(keys) if (mean := _mean(rows, key)) is not None}
    text = f"rows are ready: the learner waits only {figures['share']:.0%} of its time"
    if means:
        longest = max(means, key=lambda key: means[key])
        text += f"; the longest part of its step is {longest[5:]}, {means[longest] / figures['time/step']:.0%}"
        figures = {**figures, longest: means[longest]}
    return Finding("bound by learner", text + "; raise learner.threads or learner.num_workers", figures)


def _constant_reward(rows: list[Row], _: Config) -> Finding | None:
    rewards = _values(rows, "reward/mean")
    if len(rewards) < 10 or max(rewards) - min(rewards) > 1e-9:
        return None
    text = f"the mean reward is {rewards[0]:g} for {len(rewards)} steps: the reward function tells nothing apart"
    return Finding("constant reward", text, {"reward/mean": rewards[0]})


def _flat_groups(rows: list[Row], config: Config) -> Finding | None:
    share = _mean(rows, "reward/zero_variance_share")
    if share is None or share < FLAT_GROUPS or config.learner.algorithm.advantage in WITHOUT_GROUPS:
        return None
    text = (
        f"in {share:.0%} of the groups all {config.rollout.group_size} rollouts have the same reward and "
        "teach nothing: the task is too easy or too hard; raise rollout.group_size, have them replaced with "
        "learner.filter.zero_variance = true, or change the task"
    )
    return Finding("zero variance", text, {"reward/zero_variance_share": share})


def _failed_scores(rows: list[Row], config: Config) -> Finding | None:
    failed = _mean(rows, "reward/failed")
    if not failed or failed < FAILED * config.rollouts_per_step:
        return None
    share = failed / config.rollouts_per_step
    text = f"{share:.1%} of the scores failed; `streamrl logs {config.name} reward` has the reasons"
    return Finding("failed scores", text, {"reward/failed": failed})


def _mismatch(rows: list[Row], _: Config) -> Finding | None:
    kl = _mean(rows, "mismatch/kl")
    if kl is None or kl < MISMATCH_KL:
        return None
    text = f"engine and learner give different probabilities to the same tokens (KL {kl:.3f} a token)"
    return Finding("mismatch", text, {"mismatch/kl": kl})


def _clipped(rows: list[Row], _: Config) -> Finding | None:
    share = _mean(rows, "ratio/clip_fraction")
    if share is None or share < CLIPPED:
        return None
    text = f"{share:.0%} of the tokens are clipped: steps are too large; lower learner.optimizer.lr"
    return Finding("clipped", text, {"ratio/clip_fraction": share})


def _no_gradient(rows: list[Row], config: Config) -> Finding | None:
    # While the critic learns alone the policy has none, as it should.
    norm = _mean([row for row in rows if row["step"] > config.learner.critic.warmup_steps], "grad/norm")
    if norm is None or norm > 1e-12:
        return None
    return Finding("no gradient", "the gradient is zero: nothing is learnt", {"grad/norm": norm})


def _collapsed(rows: list[Row], _: Config) -> Finding | None:
    entropies = _values(rows, "loss/entropy")
    if len(entropies) < 20 or entropies[0] <= 0 or entropies[-1] > 0.05 * entropies[0]:
        return None
    text = f"entropy fell from {entropies[0]:.3f} to {entropies[-1]:.3f}: the answers hardly vary any more"
    return Finding("entropy collapse", text, {"loss/entropy": entropies[-1]})


def _discards(rows: list[Row], _: Config) -> Finding | None:
    dropped = _values(rows, "tokens/dropped")
    if not dropped or dropped[-1] == 0:
        return None
    text = f"{dropped[-1]:.0f} generated tokens were dropped; `streamrl status` itemises the reasons"
    return Finding("discards", text, {"tokens/dropped": dropped[-1]})


def _values(rows: list[Row], key: str) -> list[float]:
    """The finite values of a key, in order; a row without it, or with null, has none."""
    values = [row[key] for row in rows if isinstance(row.get(key), int | float)]
    return [float(value) for value in values if math.isfinite(value)]


def _mean(rows: list[Row], key: str) -> float | None:
    values = _values(rows, key)
    return fmean(values) if values else None


_LOOKS: tuple[Callable[[list[Row], Config], Finding | None], ...] = (
    _bound_by,
    _failed_scores,
    _no_gradient,
    _constant_reward,
    _flat_groups,
    _mismatch,
    _clipped,
    _collapsed,
    _discards,
)
