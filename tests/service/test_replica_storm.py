"""Replicas that come, go and die under load, all the time: the learner goes on meanwhile, and the books are exact.

`SERVICE_S` is how long each storm lasts (180 by default). A failing run prints its seed; `SEED` replays the choices.
The book is kept here, from the records of the ledger, counted anew; none of the own counts of the queue is believed.
"""

import itertools
import json
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest
from support.gateway.guest_load import guests_of
from support.queue.ledger_book import Book
from support.runs.live_run import LiveRun, live_run

pytestmark = pytest.mark.ray

SERVICE_S = float(os.environ.get("SERVICE_S", "180"))
SEED = int(os.environ.get("SEED", secrets.randbits(32)))
KILL_EVERY_S = 10.0
ORPHANS_S = 10.0
"""After any exit, until nothing of the run is alive."""
GROUPS, SIZE, STALENESS = 4, 4, 2
OVERRIDES = (
    *("--rollout.engine", "scripted", "--rollout.scripted.latency_steps", "40", "--rollout.group_size", str(SIZE)),
    *("--learner.groups_per_step", str(GROUPS), "--learner.max_staleness", str(STALENESS)),
    *("--learner.steps", "1000000", "--eval.every", "1000000", "--checkpoint.every", "50"),
    *("--gateway.enabled", "true", "--observe.trace", "false"),
)
COUNTS = (8, 2, 5, 1)
STEPS_BETWEEN = 3


class Storm:
    """One run under the load of clients. processes: all that it ever had, as far as they were seen."""

    def __init__(self, run: LiveRun) -> None:
        self.run = run
        self.processes: set[psutil.Process] = set()
        self.first = 0
        """Step at which all replicas of the beginning served."""
        self.meanwhile: list[int] = []
        """Steps that were made while replicas were on their way, each time."""

    def steps(self) -> int:
        return self.run.steps()[-1]["step"]

    def until_serving(self, count: int) -> None:
        """Read events until so many replicas serve, and count the steps until then."""
        before = self.steps()
        assert self.run.read_until(lambda event: len(event.get("replicas", [])) == count), self.run.events[-3:]
        self.meanwhile.append(self.steps() - before)
        self.look()

    def go_on(self) -> None:
        """A few steps more."""
        self.run.until_step(self.steps() + STEPS_BETWEEN)

    def look(self) -> None:
        self.processes.update(self.run.watcher().children(recursive=True))


@contextmanager
def storm(folder: Path, streamrl: Path, name: str, replicas: int) -> Iterator[Storm]:
    """A run that is asked for completions as long as the block lasts; then it is ended, and its books are checked."""
    print(f"SEED={SEED} SERVICE_S={SERVICE_S}")
    with live_run(folder, streamrl, name, *OVERRIDES, "--rollout.replicas", str(replicas)) as run:
        with guests_of(lambda: run.folder):
            run.until_step(2)
            found = Storm(run)
            found.until_serving(replicas)
            found.first = found.steps()
            yield found
            found.go_on()
            found.look()
        watcher = run.watcher()
        run.process.send_signal(signal.SIGINT)
        code, err = run.end()
        assert code == 130, err
        assert psutil.wait_procs([watcher, *found.processes], timeout=ORPHANS_S)[1] == []
    check_books(run.folder, found.first)


def check_books(folder: Path, first: int) -> None:
    """first: step with which the storm began."""
    book = Book(folder, SIZE)
    steps = len(book.trained)
    book.check_ledger(steps, groups_per_step=GROUPS, staleness=STALENESS)
    waits = sorted(line["queue/wait_s"] for line in book.lines() if line["step"] > first)
    print(
        f"{steps} steps; the learner waited {waits[len(waits) // 2]:.3f} s for one (median), {waits[-1]:.3f} s at most"
    )
    told = book.told(STALENESS)
    # The last one may have been on its way when the run was ended.
    assert told in (list(range(1, steps + 1)), list(range(1, steps)))


def scale(run: LiveRun, streamrl: Path, count: int) -> None:
    words = [streamrl, "scale", run.folder, f"rollout={count}", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert json.loads(done.stdout)["rollout"] == count, done.stderr


@pytest.mark.timeout(600 + 2 * SERVICE_S)
def test_replicas_come_and_go_under_load_and_the_learner_goes_on(user_folder: Path, streamrl_path: Path) -> None:
    with storm(user_folder, streamrl_path, "come-and-go", 1) as found:
        before, grown, ends = 1, [], time.monotonic() + SERVICE_S
        for count in itertools.cycle(COUNTS):
            scale(found.run, streamrl_path, count)
            found.until_serving(count)
            found.go_on()
            if count > before:
                grown.append(found.meanwhile[-1])
            before = count
            if time.monotonic() > ends:
                break
        assert not [text for text in found.run.notices() if "restart" in text]
        assert min(grown) > 0, "the learner made no step while replicas were on their way"


@pytest.mark.timeout(600 + 2 * SERVICE_S)
def test_replicas_are_killed_under_load_and_the_learner_goes_on(user_folder: Path, streamrl_path: Path) -> None:
    rng = np.random.default_rng(SEED)
    with storm(user_folder, streamrl_path, "killed", 3) as found:
        ends, kills = time.monotonic() + SERVICE_S, 0
        while time.monotonic() < ends:
            until = time.monotonic() + KILL_EVERY_S
            victims = found.run.actors("RolloutReplica")
            victims[int(rng.integers(len(victims)))].send_signal(signal.SIGKILL)
            kills += 1
            assert found.run.read_until(lambda event: "restart" in event.get("text", "")), found.run.events[-3:]
            found.until_serving(3)
            found.go_on()
            assert found.run.read_until(lambda _, until=until: time.monotonic() > until)
        assert sum("restart" in text for text in found.run.notices()) == kills
        assert min(found.meanwhile[1:]) > 0, "the learner made no step while a replica was on its way"
