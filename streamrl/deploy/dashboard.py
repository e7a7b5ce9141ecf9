"""A Grafana dashboard of a run, as data. Each expression names metrics that `/metrics` of the gateway writes."""

from typing import Any, NamedTuple

from streamrl.deploy.alerts import JOB

_SELECTED = '{instance=~"$instance"}'
_WIDTH, _HEIGHT, _COLUMNS = 8, 8, 3


class Line(NamedTuple):
    """A curve. `{}` of the expression stands for the selection of the instance."""

    expression: str
    legend: str


class Panel(NamedTuple):
    """unit: by Grafana's names; "" for a plain number. stacked: lines on top of each other."""

    title: str
    unit: str
    lines: tuple[Line, ...]
    stacked: bool = False


def dashboard() -> dict[str, Any]:
    """In the form that Grafana reads from a file."""
    return {
        "title": "streamrl",
        "uid": "streamrl-run",
        "tags": ["streamrl"],
        "timezone": "browser",
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_SOURCE, _INSTANCE]},
        "panels": [_panel(number, panel) for number, panel in enumerate(PANELS)],
    }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(number, _COLUMNS)
    custom: dict[str, Any] = {"lineWidth": 1, "showPoints": "never"}
    if panel.stacked:
        custom |= {"fillOpacity": 40, "stacking": {"mode": "normal", "group": "A"}}
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit or "none", "custom": custom}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "expr": line.expression.replace("{}", _SELECTED),
                "legendFormat": line.legend,
                "datasource": {"type": "prometheus", "uid": "${source}"},
            }
            for index, line in enumerate(panel.lines)
        ],
    }


_SOURCE = {"name": "source", "type": "datasource", "query": "prometheus", "label": "Data source"}
_INSTANCE = {
    "name": "instance",
    "type": "query",
    "label": "Run",
    "datasource": {"type": "prometheus", "uid": "${source}"},
    "query": f'label_values(up{{job="{JOB}"}}, instance)',
    "refresh": 2,
    "includeAll": True,
    "multi": True,
    "current": {"text": "All", "value": "$__all"},
}
_PARTS_OF_A_STEP = (
    "wait",
    "read",
    "pack",
    "forward_backward",
    "optimizer",
    "publish",
    "commit",
    "checkpoint",
    "other",
)
PANELS = (
    Panel("Reward", "", (Line("streamrl_reward_mean{}", "training"), Line("streamrl_eval_score{}", "held out"))),
    Panel("Steps per minute", "", (Line("60 * deriv(streamrl_step{}[5m])", "{{instance}}"),)),
    Panel("Tokens generated per second", "", (Line("streamrl_rollout_tokens_per_s{}", "{{instance}}"),)),
    Panel(
        "Seconds of a step",
        "s",
        tuple(Line(f"streamrl_time_{part}{{}}", part) for part in _PARTS_OF_A_STEP),
        stacked=True,
    ),
    Panel(
        "Staleness in steps", "", (Line("streamrl_staleness_mean{}", "mean"), Line("streamrl_staleness_max{}", "max"))
    ),
    Panel(
        "What the groups are worth",
        "percentunit",
        (
            Line("streamrl_reward_zero_variance_share{}", "equal rewards"),
            Line("streamrl_reward_truncated_share{}", "truncated"),
            Line("streamrl_reward_filtered_share{}", "filtered"),
        ),
    ),
    Panel("Entropy", "", (Line("streamrl_loss_entropy{}", "{{instance}}"),)),
    Panel(
        "Trainer against engine",
        "",
        (
            Line("streamrl_mismatch_kl{}", "divergence"),
            Line("streamrl_mismatch_logprob_abs_max{}", "largest difference of log-probs"),
        ),
    ),
    Panel(
        "Update",
        "",
        (
            Line("streamrl_grad_norm{}", "gradient norm"),
            Line("streamrl_ratio_clip_fraction{}", "clipped share"),
            Line("streamrl_ratio_mean{}", "mean ratio"),
        ),
    ),
    Panel(
        "Rows in the queue",
        "",
        (
            Line("streamrl_queue_now_rows_pending{}", "pending"),
            Line("streamrl_queue_now_rows_unscored{}", "without a score"),
            Line("streamrl_queue_now_rows_ready{}", "ready"),
            Line("streamrl_queue_now_rows_leased{}", "leased"),
        ),
        stacked=True,
    ),
    Panel(
        "Bytes in the queue",
        "bytes",
        (Line("streamrl_queue_now_bytes_used{}", "used"), Line("streamrl_queue_now_byte_budget{}", "budget")),
    ),
    Panel("Replicas at work", "percentunit", (Line("rate(streamrl_replica_busy_s{}[1m])", "{{name}}"),)),
    Panel(
        "Requests of replicas",
        "",
        (
            Line("streamrl_replica_running{}", "{{name}} running"),
            Line("streamrl_replica_waiting{}", "{{name}} waiting"),
        ),
    ),
    Panel(
        "A version on its way",
        "s",
        (
            Line("streamrl_weights_seconds{}", "published"),
            Line("streamrl_weights_transfer_max_s{}", "moved, the slowest"),
            Line("streamrl_weights_load_max_s{}", "loaded, the slowest"),
            Line("streamrl_weights_stall_max_s{}", "requests stood still"),
        ),
    ),
    Panel(
        "Gateway",
        "reqps",
        (
            Line("sum by (route, status) (rate(streamrl_gateway_requests_total{}[1m]))", "{{route}} {{status}}"),
            Line("streamrl_gateway_completions_running{}", "completions under way"),
        ),
    ),
)
