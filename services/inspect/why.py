"""Why a run is as fast, and learns as well, as it does: findings in words, each with the figure that says so.

Pure: rows of `metrics.jsonl` in, findings out. A figure that a row does not carry gives no finding, never a
guess.
"""

from collections.abc import Callable, Sequence

from streamrl.config.known import EPISODE_LIMITS, TURN_LIMIT
from streamrl.config.rules.learner.algorithm import WITHOUT_GROUPS
from streamrl.config.schema.run import Config
from streamrl.services.inspect.findings import Finding, Row, mean, values
from streamrl.services.inspect.why_replicas import drifting_replica
from streamrl.services.inspect.why_speed import bound_by

# The newest rows, on which the findings rest: long enough for a share, short enough to be the present.
WINDOW = 100
# Share of failed scores that is worth a word.
FAILED = 0.01
# Groups of which all rollouts have one reward teach nothing.
FLAT_GROUPS = 0.8
# Bounds from which engine and learner disagree more than rounding explains.
MISMATCH_KL = 0.05
CLIPPED = 0.3
# Share of answers that were cut, from which on what is learnt is to be short.
TRUNCATED = 0.25


def explain(rows: Sequence[Row], config: Config) -> list[Finding]:
    """What bounds the run's speed, then what ails its learning; worst first within each. Empty without
    rows.
    """
    recent = list(rows)[-WINDOW:]
    if not recent:
        return []
    found = [look(recent, config) for look in _LOOKS]
    return [finding for finding in found if finding is not None]


def _constant_reward(rows: list[Row], _: Config) -> Finding | None:
    rewards = values(rows, "reward/mean")
    if len(rewards) < 10 or max(rewards) - min(rewards) > 1e-9:
        return None
    text = f"the mean reward is {rewards[0]:g} for {len(rewards)} steps: the reward function tells nothing apart"
    return Finding("constant reward", text, {"reward/mean": rewards[0]})


def _flat_groups(rows: list[Row], config: Config) -> Finding | None:
    share = mean(rows, "reward/zero_variance_share")
    if share is None or share < FLAT_GROUPS or config.learner.algorithm.advantage in WITHOUT_GROUPS:
        return None
    text = (
        f"in {share:.0%} of the groups all {config.rollout.group_size} rollouts have the same reward and "
        "teach nothing: the task is too easy or too hard; raise rollout.group_size, have them replaced with "
        "learner.filter.zero_variance = true, or change the task"
    )
    return Finding("zero variance", text, {"reward/zero_variance_share": share})


def _failed_scores(rows: list[Row], config: Config) -> Finding | None:
    failed = mean(rows, "reward/failed")
    if not failed or failed < FAILED * config.rollouts_per_step:
        return None
    share = failed / config.rollouts_per_step
    text = f"{share:.1%} of the scores failed; `streamrl logs {config.name} reward` has the reasons"
    return Finding("failed scores", text, {"reward/failed": failed})


def _truncated(rows: list[Row], config: Config) -> Finding | None:
    share = mean(rows, "reward/truncated_share")
    if share is None or share < TRUNCATED:
        return None
    key, value = _limit(rows, config)
    what = "episodes were ended by" if config.plays_episodes else "answers were cut at"
    text = (
        f"{share:.0%} of the {what} {key} = {value}, before their end; raise it, or penalise length below it with "
        "learner.overlong.buffer"
    )
    return Finding("truncated", text, {"reward/truncated_share": share})


def _limit(rows: list[Row], config: Config) -> tuple[str, object]:
    """The key that ended most of what was cut off, and its value."""
    ended = {limit: sum(values(rows, f"environment/limit/{limit}")) for limit in EPISODE_LIMITS}
    most = max(ended, key=lambda limit: ended[limit])
    if not ended[most] or most == TURN_LIMIT:
        return "rollout.sampling.max_new_tokens", config.rollout.sampling.max_new_tokens
    return f"environment.{most}", getattr(config.environment, most)


def _mismatch(rows: list[Row], _: Config) -> Finding | None:
    kl = mean(rows, "mismatch/kl")
    if kl is None or kl < MISMATCH_KL:
        return None
    text = f"engine and learner give different probabilities to the same tokens (KL {kl:.3f} a token)"
    return Finding("mismatch", text, {"mismatch/kl": kl})


def _clipped(rows: list[Row], _: Config) -> Finding | None:
    share = mean(rows, "ratio/clip_fraction")
    if share is None or share < CLIPPED:
        return None
    text = f"{share:.0%} of the tokens are clipped: steps are too large; lower learner.optimizer.lr"
    return Finding("clipped", text, {"ratio/clip_fraction": share})


def _no_gradient(rows: list[Row], config: Config) -> Finding | None:
    # While the critic learns alone the policy has none, as it should.
    norm = mean([row for row in rows if row["step"] > config.learner.critic.warmup_steps], "grad/norm")
    if norm is None or norm > 1e-12:
        return None
    return Finding("no gradient", "the gradient is zero: nothing is learnt", {"grad/norm": norm})


def _collapsed(rows: list[Row], _: Config) -> Finding | None:
    entropies = values(rows, "loss/entropy")
    if len(entropies) < 20 or entropies[0] <= 0 or entropies[-1] > 0.05 * entropies[0]:
        return None
    text = f"entropy fell from {entropies[0]:.3f} to {entropies[-1]:.3f}: the answers hardly vary any more"
    return Finding("entropy collapse", text, {"loss/entropy": entropies[-1]})


def _discards(rows: list[Row], _: Config) -> Finding | None:
    dropped = values(rows, "tokens/dropped")
    if not dropped or dropped[-1] == 0:
        return None
    text = f"{dropped[-1]:.0f} generated tokens were dropped; `streamrl status` itemises the reasons"
    return Finding("discards", text, {"tokens/dropped": dropped[-1]})


_LOOKS: tuple[Callable[[list[Row], Config], Finding | None], ...] = (
    bound_by,
    _failed_scores,
    _no_gradient,
    _constant_reward,
    _flat_groups,
    _truncated,
    drifting_replica,
    _mismatch,
    _clipped,
    _collapsed,
    _discards,
)
