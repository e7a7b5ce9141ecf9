"""How `streamrl up` shows a run: a live page on a terminal, lines elsewhere, JSON for scripts.

Guarantees: the same events give the same lines; nothing here talks to the run. `view_state` has the figures.
"""

import json
import sys
from collections.abc import Callable
from typing import IO, Any, Protocol

from streamrl.config.schema.run import Config
from streamrl.services.run.view_state import ViewState, human_bytes, human_seconds, number

# A line for every so many steps, and at most one for so many seconds of the run.
LINE_STEPS = 50
LINE_S = 2.0


class View(Protocol):
    """Something that shows a run."""

    def show(self, event: dict[str, Any] | None) -> None:
        """Take an event; None means that time passed without one."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was found."""
        ...


def choose_view(config: Config, *, as_json: bool, stream: IO[str] | None = None) -> View:
    """The view that fits where the output goes."""
    stream = stream or sys.stdout
    if as_json:
        return JsonView(stream)
    return LiveView(config) if stream.isatty() else PlainView(config, stream)


class JsonView:
    """Every event, one JSON object a line."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def show(self, event: dict[str, Any] | None) -> None:
        if event is not None:
            print(json.dumps(event), file=self._stream, flush=True)

    def close(self) -> None:
        return None


class PlainView:
    """Lines for a log: each phase, score and notice, and a step now and then."""

    def __init__(self, config: Config, stream: IO[str]) -> None:
        self._state = ViewState(config)
        self._stream = stream
        if config.queue.durability == "memory":
            print(f"! durability {config.promise}", file=stream, flush=True)
        self._last_step = -LINE_STEPS
        self._last_ns = 0

    def show(self, event: dict[str, Any] | None) -> None:
        if event is None:
            return
        self._state.apply(event)
        line = self._line(event)
        if line:
            print(line, file=self._stream, flush=True)

    def close(self) -> None:
        return None

    def _line(self, event: dict[str, Any]) -> str:
        match event.get("kind"):
            case "phase":
                return f"[{event['name']}]"
            case "warmup" if event.get("score") is not None:
                return f"warm-up step {event.get('step', '-')}  score {number(event.get('score'))}"
            case "eval":
                return f"held-out score {number(event.get('score'))} at step {event.get('step', '-')}"
            case "arithmetic":
                return f"[{event['text']}]"
            case "resumed" | "autoscaling":
                return f"! {event['text']}"
            case "notice":
                return f"! {self._state.notices[-1]}"
            case "failure":
                # What it failed with is told once, at the end.
                return f"! {event.get('component', 'a part')} failed"
            case "step" if self._is_due(event):
                return step_line(self._state)
        return ""

    def _is_due(self, event: dict[str, Any]) -> bool:
        step, now = event["step"], event.get("time_ns", 0)
        if step - self._last_step < LINE_STEPS and now - self._last_ns < LINE_S * 1e9:
            return False
        self._last_step, self._last_ns = step, now
        return True


def step_line(state: ViewState) -> str:
    """One line on the newest step."""
    row = state.row
    return (
        f"step {state.step}/{state.total_steps}  reward {number(row.get('reward/mean'))}  "
        f"held-out {number(state.score)}  staleness {number(row.get('staleness/mean'), '.2f')}"
        f"/{number(row.get('staleness/max'), '.0f')}  rollouts/s {number(state.rollouts_per_s(), '.0f')}  "
        f"{state.who_waits()}  left {human_seconds(state.remaining_s())}"
    )


class LiveView:
    """A page that is redrawn in place."""

    def __init__(self, config: Config) -> None:
        from rich.live import Live

        self._state = ViewState(config)
        self._live = Live(page(self._state), auto_refresh=False, transient=False)
        self._live.start()

    def show(self, event: dict[str, Any] | None) -> None:
        if event is not None:
            self._state.apply(event)
        # Redrawing is for the eye: many steps a second share one picture, drawn when the stream pauses.
        if event is None or event.get("kind") != "step" or event["step"] % 5 == 0:
            self._live.update(page(self._state), refresh=True)

    def close(self) -> None:
        self._live.stop()


def page(state: ViewState) -> Any:
    """The whole picture of a run, as a rich renderable."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    figures = Table.grid(padding=(0, 3))
    for row in _figures(state):
        figures.add_row(*row)
    replicas = Table("replica", "state", "version", "running", box=None, padding=(0, 2))
    for replica in state.replicas:
        replicas.add_row(*(str(replica.get(key, "-")) for key in ("name", "state", "version", "running")))
    # A progress bar ends no line by itself; a row of a table does.
    progress = Table.grid()
    progress.add_row(ProgressBar(total=state.total_steps, completed=state.step, width=72))
    parts: list[Table | str] = [progress, figures]
    parts += [replicas] if state.replicas else []
    parts += [f"[dim]{_escaped(state.arithmetic)}[/dim]"] if state.arithmetic else []
    if state.config.queue.durability == "memory":
        parts.append(f"[yellow]{_escaped(state.config.promise)}[/yellow]")
    parts += [f"[yellow]{_escaped(notice)}[/yellow]" for notice in state.notices]
    return Panel(Group(*parts), title=f"{state.config.name}: {_phase(state)}", title_align="left", width=100)


def _figures(state: ViewState) -> list[tuple[str, str, str, str]]:
    row = state.row
    staleness = f"{number(row.get('staleness/mean'), '.2f')} / {number(row.get('staleness/max'), '.0f')}"
    queue = f"{number(row.get('queue/rows'), '.0f')} rows, {human_bytes(row.get('queue/bytes'))}"
    return [
        ("reward", number(row.get("reward/mean")), "held-out score", _score(state)),
        ("version", str(row.get("version", "-")), "staleness mean / max", staleness),
        ("rollouts/s", number(state.rollouts_per_s(), ".0f"), "tokens/s", _tokens_rate(row)),
        ("queue", queue, "left", human_seconds(state.remaining_s())),
        ("waiting", state.who_waits(), "durability", state.config.queue.durability),
    ]


def _phase(state: ViewState) -> str:
    if state.row:
        return f"{state.phase}, step {state.step} of {state.total_steps}"
    if state.warmup is not None:
        score = number(state.warmup.get("score"))
        return f"warm-up, step {state.warmup.get('step', '-')}, score {score}"
    return state.phase


def _score(state: ViewState) -> str:
    if state.first_score is None or state.first_score == state.score:
        return number(state.score)
    return f"{number(state.first_score)} -> {number(state.score)}"


def _tokens_rate(row: dict[str, Any]) -> str:
    return number(row.get("rollout/tokens_per_s"), ".0f")


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def evaluations_text(evaluations: dict[str, dict[str, Any]]) -> str:
    """What was measured beside the run's own score, on one line."""
    told = [
        f"{name} {metric} {number(value)}"
        for name, found in evaluations.items()
        for metric, value in found.items()
        if isinstance(value, float) and metric not in ("temperature", "limit")
    ]
    return ", ".join(told) or "-"


SUMMARY_LINES: tuple[tuple[str, Callable[[dict[str, Any]], str]], ...] = (
    ("held-out score", lambda s: f"{number(s.get('eval_before'))} -> {number(s.get('eval_after'))}"),
    ("evaluations", lambda s: evaluations_text(s.get("evaluations") or {})),
    ("steps", lambda s: str(s.get("steps", "-"))),
    ("wall clock", lambda s: human_seconds(s.get("wall_s"))),
    ("rollouts/s", lambda s: number(s.get("rollouts_per_s"), ".0f")),
    (
        "staleness mean / max",
        lambda s: f"{number(s.get('staleness_mean'), '.2f')} / {s.get('staleness_max', '-')}",
    ),
    ("versions published", lambda s: str(s.get("versions_published", "-"))),
    ("rollouts of two versions", lambda s: str(s.get("two_version_rollouts", "-"))),
    ("discards", lambda s: str(s.get("discards", "-"))),
    ("learner waited", lambda s: number(s.get("learner_wait_share"), ".0%")),
    ("durability", lambda s: str(s.get("durability", "-"))),
    ("model", lambda s: str(s.get("export", "-"))),
    ("reward curve", lambda s: str(s.get("curve", "-"))),
)


def summary_text(summary: dict[str, Any]) -> str:
    """The table at the end of a run."""
    return "\n".join(f"{label:<26}{show(summary)}" for label, show in SUMMARY_LINES)
