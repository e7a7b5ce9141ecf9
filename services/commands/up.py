"""`streamrl up`: claim the folder, launch, show the run until it ends, and tell how.

Guarantees: this process holds nothing that the run needs but its life (without --detach its death ends the
run); Ctrl-C once asks for a clean stop, twice ends everything at once; SIGTERM asks for a clean stop, however often it
comes; it returns when the last process of the run is gone.
"""

import json
import signal
import sys
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from streamrl.clock import SystemClock
from streamrl.config.schema.run import Config
from streamrl.errors import ComponentError
from streamrl.services.commands.model_facts import model_lines
from streamrl.services.commands.view import View, choose_view, summary_text
from streamrl.services.launch import watcher
from streamrl.services.launch.claim import claim, is_new
from streamrl.services.launch.preflight import preflight
from streamrl.services.launch.prepared_data import prepare_data, told
from streamrl.services.launch.start import OWNER_COMMAND, Launched, launch, remove_leftovers
from streamrl.services.run import run_lock
from streamrl.services.run.awaited import Awaited
from streamrl.services.run.control.client import ControlClient
from streamrl.services.run.ending import EXIT_INTERRUPTED, EXIT_TERMINATED, failure_of
from streamrl.services.run.folder import RunFolder, RunState
from streamrl.services.run.gateway_address import require_free
from streamrl.services.storage.place import require_stores

Event = dict[str, Any]


def up(
    config: Config,
    *,
    detach: bool = False,
    fresh: bool = False,
    as_json: bool = False,
    accept_changed_data: bool = False,
    command: Sequence[str] = OWNER_COMMAND,
) -> int:
    """Bring a run up and stay with it. Returns 0 (done, or up when detached), 130 (stopped) or 143 (by SIGTERM).

    Raises ConfigError, RunFolderError or ResourceError before anything starts, and what the run failed with.
    """
    if is_new(config):  # else it may be this run, up already, that has the port; then it is looked for below
        require_free(config)
    prepared = prepare_data(config)
    if not as_json:
        notes = [*model_lines(config)[1:], *(told(prepared.meta) if prepared is not None else [])]
        print(*notes, sep="\n", end="\n" if notes else "")
    if fresh or is_new(config):
        # Before the folder is made: a mistake that is put right must not look like a changed configuration.
        preflight(config)
        require_stores(config)
    claimed = claim(config, fresh=fresh, accept_changed_data=accept_changed_data)
    run = claimed.run
    if claimed.state is RunState.FINISHED:
        print_summary(run, as_json=as_json)
        return 0
    remove_leftovers(run)
    require_free(config)  # of the run before nothing is left
    if claimed.state is not RunState.NEW and not as_json:
        print(f"resuming run {run.name} ({claimed.state}), launch {run.incarnation}")
    launched = launch(claimed, detach=detach, command=command)
    view = choose_view(claimed.config, as_json=as_json)
    with closing(launched), Interrupts(launched) as interrupts:
        try:
            last = _show(launched, view, Awaited(config, SystemClock()) if detach else None)
        finally:
            view.close()
        if detach and last is not None and last["kind"] != "end":
            return _print_up(run, last, as_json=as_json)
        code = launched.process.wait()
        # A watcher that was killed is gone before the owner is.
        run_lock.wait_until_free(run.lock_path, claimed.config.deadlines.stop_s)
    stopped = (interrupts.asked and last is None) or (last is not None and last.get("how") == "stopped")
    return _print_end(run, interrupts.code if stopped else code, last, as_json=as_json)


def _show(launched: Launched, view: View, awaited: Awaited | None) -> Event | None:
    """Show events until the end, or until what is awaited. Returns the event of the end, or `up`; None where the owner
    died without a word."""
    try:
        client = ControlClient(launched.control)
    except ComponentError:
        # The owner died before it could answer; its exit code and log say more than the socket.
        return None
    with client:
        for event in client.events():
            view.show(event)
            if event is not None and event["kind"] == "end":
                return event
            if awaited is not None and awaited.is_over(event):
                return {"kind": "up", "ready": awaited.is_ready}
    return None


def _print_up(run: RunFolder, up: Event, *, as_json: bool) -> int:
    if not up["ready"]:
        print(f"streamrl: the gateway of run {run.name} has no replica yet; /readyz says when it has", file=sys.stderr)
    if not as_json:
        print(f"run {run.name} is up; `streamrl status {run.path}` looks at it, `streamrl down {run.path}` ends it")
    return 0


def _print_end(run: RunFolder, code: int, end: Event | None, *, as_json: bool) -> int:
    if code not in (0, EXIT_INTERRUPTED, EXIT_TERMINATED):
        raise failure_of(run, code, end)
    if code == 0 and not as_json:
        print_summary(run, as_json=False)
    elif not as_json:
        print(f"stopped; `streamrl up {run.config_path}` goes on from here")
    return code


def print_summary(run: RunFolder, *, as_json: bool) -> None:
    """Print the figures of a finished run."""
    summary = run.summary() or {}
    print(json.dumps(summary) if as_json else f"run {run.name} is finished\n{summary_text(summary)}")


class Interrupts:
    """Turns signals into orders to the watcher. The first Ctrl-C asks for a clean stop, the second insists. SIGTERM
    asks, and never insists: schedulers send it to every process of a job, and a script of the job passes it on.

    `asked` says whether there was one, `code` what a run that is stopped exits with. Use as a context manager, in the
    main thread.
    """

    def __init__(self, launched: Launched) -> None:
        self.asked = False
        self.code = EXIT_INTERRUPTED
        self._watcher = launched.process
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Interrupts":
        for number, handler in ((signal.SIGINT, self._on_interrupt), (signal.SIGTERM, self._on_termination)):
            self._before[number] = signal.signal(number, handler)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_interrupt(self, _number: int, _frame: object) -> None:
        if self.asked:
            self._watcher.send_signal(watcher.INSIST)
        else:
            self._ask("stopping; Ctrl-C again ends it at once")

    def _on_termination(self, _number: int, _frame: object) -> None:
        if not self.asked:
            self.code = EXIT_TERMINATED
            self._ask("stopping, as SIGTERM asks; a checkpoint is committed first")

    def _ask(self, words: str) -> None:
        self.asked = True
        self._watcher.send_signal(watcher.ASK)
        print(words, file=sys.stderr)
