"""`streamrl eval`: scores of the run's own held-out items, or of published tasks, and where they are kept.

Guarantees: what is asked for beside the run's own way (`--k`, `--tasks`) is in no curve of the run; it goes to
`evaluations.jsonl`, which `status`, the page and the summary show.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from streamrl.config import load
from streamrl.errors import ConfigError, ResourceError
from streamrl.observability.evaluations import HELD_OUT, EvaluationRecord, append_evaluations, shown
from streamrl.services.commands.exchange.readiness import require_up
from streamrl.services.run.control.client import ControlClient
from streamrl.services.run.folder import RunFolder

# An evaluation of a thousand prompts beside the stream.
_EVAL_S = 600.0
MOST_SAMPLES = 1024


def evaluate(run: RunFolder) -> dict[str, Any]:
    """Score the held-out items now, on a live run; of a finished one, the score it ended with."""
    summary = run.summary()
    if summary is not None and run.owner() is None:
        return {"run": run.name, "eval/score": summary.get("eval_after"), "step": summary.get("steps")}
    with ControlClient.of(run, _EVAL_S) as client:
        return {"run": run.name, **client.ask("eval")}


def evaluate_samples(run: RunFolder, samples: int, temperature: float | None) -> dict[str, Any]:
    """Complete each held-out item `samples` times: `avg@k` and `pass@k`. temperature: as the stream's when None.

    Raises ConfigError for numbers that say nothing, RunFolderError when the run is not up.
    """
    config = load(run.config_path)
    drawn = config.rollout.sampling.temperature if temperature is None else temperature
    if not 1 <= samples <= MOST_SAMPLES:
        raise ConfigError(f"--k {samples}: completions of each item, from 1 to {MOST_SAMPLES}")
    if drawn < 0 or (drawn == 0 and samples > 1):
        what = "greedy completions of one item are all the same" if drawn == 0 else "a temperature is at least 0"
        raise ConfigError(f"--temperature {drawn:g}: {what}; set one above 0")
    require_up(run)
    with ControlClient.of(run, _EVAL_S * samples) as client:
        told = client.ask("eval", samples=samples, temperature=drawn)
    record = _held_out(told, samples, drawn)
    keep(run, [record])
    return {"run": run.name, record.name: shown(record)}


def evaluate_tasks(
    run: RunFolder,
    tasks: Sequence[str],
    *,
    limit: float | None,
    include: Sequence[str],
    chat: bool,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Score published tasks by lm-evaluation-harness through the run's gateway. Raises what `run_harness` raises, and
    ResourceError where the scores cannot be written down."""
    from streamrl.services.commands.exchange.harness import run_harness

    records = run_harness(run, tasks, limit=limit, include=include, chat=chat, tell=tell)
    keep(run, records)
    return {"run": run.name, **{record.name: shown(record) for record in records}}


def keep(run: RunFolder, records: Sequence[EvaluationRecord]) -> None:
    """Write them down, in the summary too if there is one by now. Raises ResourceError; what was measured is in the
    message then."""
    try:
        append_evaluations(run.evaluations_path, records)
        summary = run.summary()
        if summary is not None:
            run.write_summary_with_evaluations(summary)
    except OSError as error:
        scores = "; ".join(f"{record.name}: {dict(record.scores)}" for record in records)
        raise ResourceError(
            f"{run.evaluations_path} cannot be written: {error}; what was measured: {scores}"
        ) from error


def _held_out(told: Mapping[str, Any], samples: int, temperature: float) -> EvaluationRecord:
    known = {"version", "step"}
    scores = {name: value for name, value in told.items() if name not in known and value is not None}
    return EvaluationRecord(
        time_ns=time.time_ns(),
        name=f"{HELD_OUT}@{samples}",
        step=told["step"],
        version=told["version"],
        scores={
            ("score" if name == "eval/score" else name.removeprefix("eval/")): value for name, value in scores.items()
        },
        source="streamrl",
        samples=samples,
        temperature=temperature,
    )
