"""What the commands beside `up` do: each returns plain data for `--json`, which `cli` turns into text.

Light: neither Ray nor torch is imported.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from streamrl.config import load
from streamrl.errors import DeadlineError, RunFolderError
from streamrl.observability.metrics import read_metrics
from streamrl.services.inspect.why import explain
from streamrl.services.launch import watcher
from streamrl.services.launch.start import remove_leftovers
from streamrl.services.run import run_lock
from streamrl.services.run.control.client import ControlClient, OwnerGoneError
from streamrl.services.run.control.listener import LOOK_S
from streamrl.services.run.ending import first_cause
from streamrl.services.run.folder import RunFolder, RunState
from streamrl.services.run.read_logs import FOLLOW_S, Tail, last_lines, log_files, readable
from streamrl.services.run.run_lock import RunLock

# Beyond the run's own time to stop: the watcher's kill and sweep.
_SPARE_S = 5.0
# Until a socket that somebody removed is there again.
_BACK_S = LOOK_S + 1.0


def status(run: RunFolder) -> dict[str, Any]:
    """State of a run: from its owner if one lives, else from its files."""
    state = run.state()
    facts: dict[str, Any] = {"run": run.name, "folder": str(run.path), "state": str(state)}
    facts["launch"] = run.incarnation
    facts["durability"] = load(run.config_path).promise
    if evaluated := run.evaluations():
        facts["evaluations"] = evaluated
    if state is RunState.RUNNING and run.owner() is not None:
        told = _status_told(run)
        return status(run) if told is None else {**told, **facts}
    if state is RunState.FINISHED:
        return {**facts, "summary": run.summary()}
    if state is RunState.FAILED:
        facts["cause"] = first_cause(run)
    rows = read_metrics(run.metrics_path)
    return {**facts, "last": rows[-1]} if rows else facts


def _status_told(run: RunFolder) -> dict[str, Any] | None:
    """What the owner says; None when it ended meanwhile, so that the run's files say how. Raises OwnerGoneError for one
    that lives and is not to be reached."""
    # It ends just now, or its socket was removed and is there again soon.
    for patience_s in (_BACK_S, load(run.config_path).deadlines.stop_s + _SPARE_S):
        try:
            return _ask_status(run)
        except OwnerGoneError:
            if run_lock.wait_until_free(run.lock_path, patience_s):
                return None
    return _ask_status(run)


def _ask_status(run: RunFolder) -> dict[str, Any]:
    with ControlClient.of(run) as client:
        return client.ask("status")


def why(run: RunFolder, tell: Callable[[str], None] | None = None) -> list[dict[str, Any]]:
    """Findings on a run's speed and learning. Raises RunFolderError when it has no step yet. tell: of lines of metrics
    that cannot be read."""
    rows = read_metrics(run.metrics_path, tell)
    if not rows:
        raise RunFolderError(f"run {run.name} has no step yet, so there is nothing to explain; wait for the first")
    return [msgspec.to_builtins(finding) for finding in explain(rows, load(run.config_path))]


def scale(run: RunFolder, asked: Mapping[str, str]) -> dict[str, Any]:
    """Have more or fewer of a part of a live run, by its name; returns when that is ordered, and waits for none of them
    to come or go."""
    with ControlClient.of(run) as client:
        return {"run": run.name, **client.ask("scale", **asked)}


def down(run: RunFolder) -> dict[str, Any]:
    """End a run cleanly, by force when it does not obey, and wait until its last process is gone.

    Raises DeadlineError, naming the processes, when something is still there after that.
    """
    was_up = run.in_use_by() is not None
    limit = load(run.config_path).deadlines.stop_s + _SPARE_S
    launch = run.record.launch
    if launch is not None and not launch.watcher.signal(watcher.ASK):
        # The watcher was killed; its owner stops by itself, and is told once more.
        launch.owner.signal(watcher.ASK)
    if not run_lock.wait_until_free(run.lock_path, limit):
        _insist(run)
    _sweep(run)
    return {"run": run.name, "was_up": was_up, "state": str(run.state())}


def _insist(run: RunFolder) -> None:
    launch = run.record.launch
    if launch is not None:
        launch.watcher.signal(watcher.INSIST)
    if not run_lock.wait_until_free(run.lock_path, _SPARE_S):
        pids = f"{launch.owner.pid} and {launch.watcher.pid}" if launch is not None else "unknown"
        raise DeadlineError(f"run {run.name} is still there after an order to end at once; its pids: {pids}")


def _sweep(run: RunFolder) -> None:
    """Remove leftovers, unless somebody has just brought the run up again."""
    lock = RunLock.take(run.lock_path)
    if lock is not None:
        remove_leftovers(run)
        lock.release()


def show_logs(
    run: RunFolder, component: str | None, *, count: int, follow: bool, show: Callable[[str, str], None]
) -> None:
    """Hand the last lines of the logs, then (follow) each new one, to `show(component, line)`.

    Following ends with the run, or by Ctrl-C.
    """
    files = log_files(run.logs_path, component)
    tails = {path: Tail(path) for path in files}
    for path in files:
        for line in last_lines(path, count):
            show(path.stem, readable(line))
    pause = threading.Event()
    while follow:
        alive = run.in_use_by() is not None
        for path, tail in tails.items():
            for line in tail.new_lines():
                show(path.stem, readable(line))
        if not alive:
            return
        pause.wait(FOLLOW_S)
