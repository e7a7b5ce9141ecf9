"""Prometheus's rules for a run: when a person should look. Each names metrics that `/metrics` of the gateway writes."""

from typing import Any

JOB = "streamrl"
"""Of the scrape, as Prometheus labels it."""


def alert_rules() -> dict[str, Any]:
    """A file of rules."""
    return {"groups": [{"name": "streamrl", "rules": [_rule(*one) for one in _ALERTS]}]}


def _rule(name: str, expression: str, wait: str, severity: str, summary: str, way_out: str) -> dict[str, Any]:
    return {
        "alert": name,
        "expr": expression,
        "for": wait,
        "labels": {"severity": severity},
        "annotations": {"summary": summary, "description": way_out},
    }


_ALERTS = (
    (
        "StreamrlDown",
        f'up{{job="{JOB}"}} == 0',
        "2m",
        "critical",
        "The gateway of run {{ $labels.instance }} does not answer.",
        "`streamrl status` tells how the run stands; the same `streamrl up` resumes it.",
    ),
    (
        "StreamrlNoStep",
        "changes(streamrl_step[15m]) == 0",
        "5m",
        "warning",
        "Run {{ $labels.instance }} has made no step for 15 minutes.",
        "`streamrl why` and the newest logs/stacks-*.txt say what it waits for.",
    ),
    (
        "StreamrlNoReplica",
        "streamrl_rollout_replicas < 1",
        "5m",
        "critical",
        "Run {{ $labels.instance }} has no rollout replica.",
        "logs/death-*.txt of the run folder tell why the last one died.",
    ),
    (
        "StreamrlLearnerWaits",
        "streamrl_time_wait / streamrl_time_step > 0.8",
        "30m",
        "info",
        "The learner of run {{ $labels.instance }} waits for rows most of the time.",
        "`streamrl why` names what bounds the run; `streamrl scale rollout=N` adds replicas.",
    ),
    (
        "StreamrlScoresFail",
        "rate(streamrl_queue_now_scores_failed[10m]) "
        "/ (rate(streamrl_queue_now_scores_ok[10m]) + rate(streamrl_queue_now_scores_failed[10m])) > 0.05",
        "10m",
        "warning",
        "More than 5% of the rewards of run {{ $labels.instance }} fail.",
        "`streamrl logs reward` has the errors of the reward function.",
    ),
    (
        "StreamrlMismatch",
        "streamrl_mismatch_kl > 0.1",
        "10m",
        "warning",
        "Engine and learner of run {{ $labels.instance }} disagree on log-probs.",
        "`streamrl doctor parity CONFIG` compares them at one version.",
    ),
    (
        "StreamrlNothingToLearn",
        "streamrl_reward_zero_variance_share > 0.95",
        "30m",
        "info",
        "Nearly all groups of run {{ $labels.instance }} have equal rewards.",
        "The task is solved or too hard: look at eval/score, and at data.curriculum.",
    ),
    (
        "StreamrlQueueFull",
        "streamrl_queue_now_bytes_used / streamrl_queue_now_byte_budget > 0.9",
        "15m",
        "warning",
        "The queue of run {{ $labels.instance }} has used 90% of queue.byte_budget.",
        "Take checkpoints more often, or raise queue.byte_budget.",
    ),
    (
        "StreamrlRowsLost",
        "increase(streamrl_queue_now_rows_lost[15m]) > 0",
        "0m",
        "warning",
        "Run {{ $labels.instance }} lost rows with a node; they are generated again.",
        "docs/guides/nodes.md says what a dead node costs.",
    ),
    (
        "StreamrlGatewayFails",
        'sum by (instance) (rate(streamrl_gateway_requests_total{status=~"5.."}[5m])) '
        "/ sum by (instance) (rate(streamrl_gateway_requests_total[5m])) > 0.05",
        "10m",
        "warning",
        "More than 5% of the requests to {{ $labels.instance }} end with a server's error.",
        "`streamrl logs gateway` has the reason of each.",
    ),
)
"""Name, expression, how long it must hold, severity, what is wrong, the way out."""
