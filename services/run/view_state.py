"""What the terminal shows of a run, worked out from its events. Pure: no terminal, no clock but the events'
own.

Events, by `kind`: `phase` (name), `warmup` (step, score), `step` (a row of metrics.jsonl), `eval` (score,
step), `replicas` (replicas: list of name, state, version, running), `notice` (text), `resumed` (text), `autoscaling`
(text), `arithmetic` (text), `gateway` (url), `failure`, `end`. A key that is not there is not shown; an unknown kind is
ignored, so a newer owner may say more.
"""

from collections import deque
from typing import Any

from streamrl.config.schema.run import Config

# Rates are of the last so many steps.
WINDOW = 50
Row = dict[str, Any]


class ViewState:
    """The newest figures of one run."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.phase = "starting"
        self.warmup: Row | None = None
        self.row: Row = {}
        self.first_score: float | None = None
        self.score: float | None = None
        self.replicas: list[Row] = []
        self.notices: deque[str] = deque(maxlen=3)
        self.arithmetic = ""
        self.end: Row | None = None
        self._steps: deque[Row] = deque(maxlen=WINDOW + 1)

    def apply(self, event: Row) -> None:
        """Take one event in."""
        match event.get("kind"):
            case "phase":
                self.phase = event["name"]
            case "warmup":
                # Most steps of the warm-up are not scored; the last score stands until the next.
                score = event.get("score")
                before = self.warmup["score"] if self.warmup is not None else None
                self.warmup = {**event, "score": before if score is None else score}
            case "step":
                self._step(event)
            case "eval":
                self._score(event.get("score"))
            case "replicas":
                self.replicas = event["replicas"]
            case "gateway":
                self.notices.append(f"the gateway is at {event['url']}")
            case "arithmetic":
                self.arithmetic = event["text"]
            case "notice" | "resumed" | "autoscaling":
                self.notices.append(event["text"])
            case "failure":
                self.notices.append(f"{event.get('component', 'a part')}: {event.get('cause', 'failed')}")
            case "end":
                self.end = event
                self.phase = event["how"]

    @property
    def step(self) -> int:
        """Steps done."""
        return int(self.row.get("step", 0))

    @property
    def total_steps(self) -> int:
        return self.config.learner.steps

    def steps_per_s(self) -> float | None:
        """Over the window; None before there are two steps."""
        if len(self._steps) < 2:
            return None
        first, last = self._steps[0], self._steps[-1]
        seconds = (last["time_ns"] - first["time_ns"]) / 1e9
        return (last["step"] - first["step"]) / seconds if seconds > 0 else None

    def rollouts_per_s(self) -> float | None:
        """Rollouts trained a second, over the window."""
        rate = self.steps_per_s()
        return None if rate is None else rate * self.config.rollouts_per_step

    def remaining_s(self) -> float | None:
        """Seconds to the last step at the present rate."""
        rate = self.steps_per_s()
        return max(0, self.total_steps - self.step) / rate if rate else None

    def learner_wait_share(self) -> float | None:
        """Share of the window's time that the learner waited for rows."""
        rows = [row for row in self._steps if row.get("time/step") and row.get("time/wait") is not None]
        if not rows:
            return None
        return sum(row["time/wait"] for row in rows) / sum(row["time/step"] for row in rows)

    def who_waits(self) -> str:
        """Who waits for whom, in words."""
        learner, rollout = self.learner_wait_share(), self.row.get("rollout/idle_share")
        parts = []
        if learner is not None:
            parts.append(f"learner waits for rows {learner:.0%}")
        if rollout is not None:
            parts.append(f"replicas wait for admission {rollout:.0%}")
        return ", ".join(parts) or "-"

    def _step(self, event: Row) -> None:
        self.row = event
        self._steps.append(event)
        self._score(event.get("eval/score"))

    def _score(self, score: float | None) -> None:
        if score is None:
            return
        self.first_score = score if self.first_score is None else self.first_score
        self.score = score


def human_bytes(count: float | None) -> str:
    """`12.3 MiB`, or `-`."""
    if count is None:
        return "-"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def human_seconds(seconds: float | None) -> str:
    """`45 s`, `3:07`, `2:05:00`, or `-`."""
    if seconds is None:
        return "-"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def number(value: float | None, form: str = ".3f") -> str:
    """A figure, or `-` when there is none yet."""
    return "-" if value is None else format(value, form)
