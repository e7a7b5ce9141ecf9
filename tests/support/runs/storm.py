"""Kills by `kill -9`, again and again, in one run: which processes there are, and a run over all its launches."""

import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from support.runs.live_run import LIMIT_S, LiveRun, live_run

Victims = Callable[[LiveRun], list[psutil.Process]]


def actor(name: str) -> Victims:
    return lambda run: run.processes(lambda first, _: first.startswith(f"ray::{name}"))


def program(name: str) -> Victims:
    return lambda run: run.processes(lambda first, words: first.endswith(name) or name in words[:4])


KINDS: dict[str, Victims] = {
    "controller": actor("Controller"),
    "queue": actor("QueueActor"),
    "weight-store": actor("WeightStoreActor"),
    "replica": actor("RolloutReplica"),
    "reward": actor("RewardActor"),
    "reward-child": program("streamrl.rewards.child"),
    "learner": actor("LearnerRank"),
    "gateway": actor("GatewayActor"),
    "raylet": program("raylet/raylet"),
    "gcs": program("gcs/gcs_server"),
    "owner": lambda run: [run.owner()],
    "watcher": lambda run: [run.watcher()],
    "up": lambda run: [psutil.Process(run.process.pid)],
}

ENVIRONMENT_CHILD = program("streamrl.environments.processes.child")
"""Of a run of episodes."""

EARLY = 0.3
"""Share of the kills of a gateway that do not wait until it serves."""


class Storm:
    """One run over all its launches. `up` is called again whenever it ended before the run was done."""

    def __init__(self, folder: Path, streamrl: Path, name: str, overrides: tuple[str, ...]) -> None:
        self._launch = lambda: live_run(folder, streamrl, name, *overrides)
        self._context = self._launch()
        self.run = self._context.__enter__()
        self.events: list[dict[str, Any]] = []
        self.newest = 0
        self._watchers: list[psutil.Process] = []
        """Of the launch that is on, where it was still there when it was looked for."""
        self._early = False
        self._served = 0

    def let_serve(self, kind: str, rng: np.random.Generator) -> None:
        """Mostly wait until the gateway that was started last serves, which the run does not. Killed too often in a row
        before that it is not started again, as it should be."""
        if kind != "gateway":
            return
        self._early = not self._early and rng.random() < EARLY
        while not self._early and self._gateways() == self._served:
            if not self.run.read_until(lambda event: event["kind"] == "gateway"):
                self._again()
        self.newest = max([self.newest, *(event["step"] for event in self.run.steps()[-1:])])

    def _gateways(self) -> int:
        """How often one began to serve, as far as the events are read."""
        return sum(event["kind"] == "gateway" for event in (*self.events, *self.run.events))

    def go_on(self, steps: int) -> None:
        """Let the run train so many steps that it never trained before."""
        goal = self.newest + steps
        while not self.run.read_until(lambda event: event["kind"] == "step" and event["step"] >= goal):
            code, err = self.run.end()
            assert code != 2, err
            self._again()
        self.newest = max(self.newest, self.run.steps()[-1]["step"])
        with suppress(psutil.NoSuchProcess):
            self._watchers = [self.run.watcher()]

    def kill(self, kind: str, rng: np.random.Generator) -> None:
        """Kill one of a kind. Where none is there at the moment it is looked for again after each event: without it the
        run makes no more steps than were under way."""
        while not self._killed(kind, rng):
            if not self.run.read_until(lambda _: True):
                self._again()
        if kind == "gateway":
            self._served = self._gateways()

    def _killed(self, kind: str, rng: np.random.Generator) -> bool:
        """False where there is none: between two of them, or since the launch ended, though not all it said is read."""
        try:
            victims = KINDS[kind](self.run)
            if victims:
                victims[int(rng.integers(len(victims)))].send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            return False
        return bool(victims)

    def finish(self) -> None:
        """To the end of the run, however many launches that takes."""
        while True:
            code, err = self.run.end()
            if code == 0:
                return
            # A killed watcher takes the owner with it as an order to stop does: 130.
            assert code in (4, 130, -signal.SIGKILL), err
            self._again()

    def _again(self) -> None:
        assert self.run.process.wait(LIMIT_S) != 0, "the run was done before its last kill"
        self._close()
        # After the death of `up` alone, the rest of the launch ends within `deadlines.stop_s`; then the folder is free.
        psutil.wait_procs(self._watchers, timeout=20)
        self._context = self._launch()
        self.run = self._context.__enter__()

    def close(self) -> None:
        """End what still runs."""
        self._context.__exit__(None, None, None)

    def _close(self) -> None:
        self.events += self.run.events
        self.close()
