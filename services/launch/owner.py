"""The owner of a run: the process that holds Ray, starts the system, answers the control socket and ends it
all.

    watcher starts us -> control socket -> Ray -> system -> run ... -> stop -> Ray gone -> exit code

Guarantees: an order to stop (a signal, from the watcher) is taken at every moment; the socket answers from
the first moment to the last; the exit code says how it ended. The limit on a stop, and what survives our
own death, are the watcher's business.
"""

import asyncio
import ctypes
import json
import os
import shutil
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from streamrl.config import load
from streamrl.config.estimates.log_budget import log_shares
from streamrl.config.schema.run import Config
from streamrl.errors import ProcessDiedError, RunFolderError, StartAgainError, StreamRLError
from streamrl.observability.failure import FailureReport, report_failure
from streamrl.services.actors.restarts import RESTARTS, RestartBudget, back_off_s
from streamrl.services.launch import ray_session
from streamrl.services.launch.bounded_log import open_bounded
from streamrl.services.launch.ray_processes import end_orphans, ray_processes, unless_ray_dies
from streamrl.services.launch.start import LaunchOrder, owner_grace_s
from streamrl.services.launch.system_api import StartSystem, System
from streamrl.services.run.control.server import ControlServer, Event, EventHub, Handler, described
from streamrl.services.run.ending import EXIT_INTERRUPTED
from streamrl.services.run.folder import Launch, RunFolder
from streamrl.services.run.layout import STACKS_FOLDER
from streamrl.services.run.liveness import ProcessId
from streamrl.services.run.run_lock import RunLock
from streamrl.services.run.scaling import outcome, remembered, requested_sizes, sizes
from streamrl.system.append_file import AppendFile
from streamrl.system.stacks import answer
from streamrl.types import EvalSampling

PR_SET_PDEATHSIG = 1
# Ray's own shutdown takes 1 to 2 s.
_RAY_STOP_S = 2.5
_LAST_WORDS_S = 0.5
SYSTEM = "the system"
T = TypeVar("T")


class Stopped(Exception):
    """Somebody ordered the run to stop. Never leaves this module."""


class Owner:
    """One launch of one run, from the first event to the exit code."""

    def __init__(self, run: RunFolder, config: Config, order: LaunchOrder, start_system: StartSystem) -> None:
        self._run = run
        self._config = config
        self._order = order
        self._start_system = start_system
        self._hub = EventHub()
        self._events = AppendFile(run.events_path, log_shares(config).events)
        self._stop = asyncio.Event()
        self._phase = "starting"
        self._system: System | None = None
        self._restarts = RestartBudget()
        self._newest_step = -1
        self._replicas = run.record.replicas or config.rollout.replicas
        # Two changes at once would each be weighed against what the machine has without the other.
        self._scaling = asyncio.Lock()

    async def main(self) -> int:
        """Own the run to its end. Returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop.set)
        listener = socket.socket(fileno=self._order.control_fd)
        async with ControlServer(listener, self._hub, self.handlers()):
            try:
                return await self._own()
            finally:
                self._hub.close()

    def handlers(self) -> dict[str, Handler]:
        """What answers each operation of the control socket."""
        return {"status": self._status, "eval": self._evaluate, "scale": self._scale, "sizes": self._sizes}

    async def _own(self) -> int:
        try:
            summary = await self._train_on()
        except Stopped:
            return self._end("stopped", EXIT_INTERRUPTED)
        except StreamRLError as error:
            # The part that failed has reported already, if it could; else this is the first report.
            report_failure(self._run.path, FailureReport.now("owner", self._phase, str(error)))
            return self._end("failed", error.exit_code, error=described(error))
        return self._end("done", 0, summary=summary)

    async def _train_on(self) -> dict[str, Any]:
        """Train to the end; on another system when a process that the system cannot replace itself dies, or when a part
        needs what only the disk has."""
        for notice in self._order.notices:
            self._notice(notice)
        while True:
            try:
                return await self._train()
            except (ProcessDiedError, StartAgainError) as death:
                number = self._restarts.died(SYSTEM, self._newest_step)
                if number is None or self._stop.is_set():
                    raise
                self._notice(f"{death}; the system starts again from what is on disk, {number} of {RESTARTS}")
                self._run.archive_failure()
                launch = self._run.record.launch
                if launch is not None:
                    await asyncio.to_thread(end_orphans, launch.watcher.pid)
                pause = asyncio.create_task(asyncio.sleep(back_off_s(number)), name="pause before a restart")
                try:
                    await self._unless_stopped(pause)
                finally:
                    pause.cancel()

    async def _train(self) -> dict[str, Any]:
        self._enter("ray")
        runtime = Path(self._order.runtime)
        session = await asyncio.to_thread(ray_session.start, self._run, self._config.ray, runtime)
        try:
            self._record_address(session)
            self._enter("actors")
            self._system = await self._started_system()
            return self._finish(await self._run_system(self._system))
        finally:
            await asyncio.to_thread(ray_session.stop)

    async def _started_system(self) -> System:
        start = asyncio.ensure_future(self._start_system(self._run, self._config))
        try:
            return await self._unless_stopped(start)
        finally:
            await _end_task(start)

    async def _run_system(self, system: System) -> dict[str, Any]:
        self._enter("running")
        self._restarts.served(SYSTEM, self._newest_step)
        relay = asyncio.create_task(self._relay(system), name="relay events")
        work = asyncio.ensure_future(system.run())
        guarded = asyncio.create_task(unless_ray_dies(work, ray_processes()))
        try:
            return await self._unless_stopped(guarded)
        finally:
            await _end_task(guarded)
            self._enter("stopping")
            # `run` is not cancelled first: it ends by itself when the system stops, its last words told.
            await self._stop_system(system)
            await asyncio.wait({relay, work}, timeout=_LAST_WORDS_S)
            await _end_task(relay)
            await _end_task(work)

    async def _stop_system(self, system: System) -> None:
        limit = max(1.0, owner_grace_s(self._config.deadlines.stop_s) - _RAY_STOP_S)
        try:
            async with asyncio.timeout(limit):
                await system.stop()
        except TimeoutError:
            self._notice(f"the system did not stop within {limit:g} s and is ended as it is")
        except StreamRLError as error:
            # Told, not raised: it must not take the place of the error that made us stop.
            self._notice(f"the system did not stop cleanly: {error}")

    async def _relay(self, system: System) -> None:
        self._replicas = self._run.record.replicas or self._config.rollout.replicas
        async for event in system.events():
            if event["kind"] == "step":
                self._newest_step = max(self._newest_step, event["step"])
            if event["kind"] == "gateway":
                self._record_gateway(event["url"])
            if event["kind"] == "autoscaling":
                self._replicas = event["replicas"]
            self._publish(event)

    async def _unless_stopped(self, work: "asyncio.Future[T]") -> T:
        """Await something, but leave it, still running, when the order to stop comes first."""
        stop = asyncio.create_task(self._stop.wait(), name="order to stop")
        try:
            both: set[asyncio.Future[Any]] = {work, stop}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if self._stop.is_set() and not work.done():
                raise Stopped
            return await work
        finally:
            await _end_task(stop)

    def _finish(self, summary: dict[str, Any]) -> dict[str, Any]:
        """Add what only the owner knows: the wall clock of the whole command, Ray's start included."""
        summary = {**summary, "wall_s": (time.time_ns() - self._order.started_ns) / 1e9}
        return self._run.write_summary_with_evaluations(summary)

    def _record_address(self, session: ray_session.RaySession) -> None:
        launch = self._run.record.launch
        assert launch is not None
        self._run.start_launch(msgspec.structs.replace(launch, ray_address=session.address))
        for notice in session.notices:
            self._notice(notice)

    def _record_gateway(self, url: str) -> None:
        launch = self._run.record.launch
        if launch is not None and launch.gateway != url:
            self._run.start_launch(msgspec.structs.replace(launch, gateway=url))

    def _notice(self, text: str) -> None:
        self._publish({"kind": "notice", "text": text})

    def _enter(self, phase: str) -> None:
        self._phase = phase
        self._publish({"kind": "phase", "name": phase})

    def _end(self, how: str, code: int, **facts: Any) -> int:
        self._phase = how
        self._publish({"kind": "end", "how": how, "code": code, **facts})
        return code

    def _publish(self, event: Event) -> None:
        stamped = self._hub.publish(event)
        if event["kind"] != "step":
            self._events.append(json.dumps(stamped).encode() + b"\n")

    async def _status(self) -> dict[str, Any]:
        detail = {} if self._system is None else await self._system.status()
        return {**detail, "run": self._run.name, "phase": self._phase, "pid": os.getpid()}

    async def _evaluate(self, **asked: Any) -> dict[str, Any]:
        """asked: `samples` and `temperature`, where they are not to be the configuration's."""
        if self._system is None:
            raise RunFolderError(f"run {self._run.name} is still {self._phase}; evaluate when it is running")
        return await self._system.evaluate(msgspec.convert(asked, EvalSampling) if asked else None)

    async def _sizes(self) -> dict[str, Any]:
        """How many there are to be of each part that can be scaled."""
        return {**sizes(self._run.record, self._config), "rollout": self._replicas}

    async def _scale(self, **asked: Any) -> dict[str, Any]:
        """Have more or fewer of a part, also after a restart: the run folder remembers it."""
        if self._system is None:
            raise RunFolderError(f"run {self._run.name} is still {self._phase}; scale it when it is running")
        async with self._scaling:
            before = await self._sizes()
            wanted = await asyncio.to_thread(requested_sizes, self._run.config_path, before, asked)
            self._run.save(remembered(self._run.record, wanted))
            await self._system.scale(wanted)
            self._replicas = wanted.get("rollout") or self._replicas
        return outcome(before, wanted)


async def _end_task(task: "asyncio.Future[Any]") -> None:
    """Cancel what may still run and take its result, which nobody wants any more."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def own(arguments: list[str], start_system: StartSystem) -> int:
    """The owner's process: `[run folder, launch order]`. Returns its exit code."""
    # Should the watcher itself be killed, its death is our order to stop.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)
    folder, order_text = arguments
    order = msgspec.json.decode(order_text, type=LaunchOrder)
    # Inherited from the watcher, and to nobody: a lock that Ray's processes held would outlive us.
    for fd in (order.lock_fd, order.control_fd):
        os.set_inheritable(fd, False)
    run = RunFolder.open(Path(folder))
    config = load(run.config_path)
    sys.stdout = sys.stderr = open_bounded(run.logs_path / "owner.log", log_shares(config).log)
    answer("owner", run.path / STACKS_FOLDER)
    RunLock(order.lock_fd).sign()
    run.start_launch(
        Launch(
            owner=ProcessId.own(),
            watcher=ProcessId.of(os.getppid()),
            runtime=order.runtime,
            control=f"{order.runtime}/control.sock",
            started_ns=order.started_ns,
        )
    )
    try:
        return asyncio.run(Owner(run, config, order, start_system).main())
    finally:
        shutil.rmtree(run.path / STACKS_FOLDER, ignore_errors=True)


def main() -> None:
    """Entry point of the process that `streamrl up` starts."""
    sys.exit(own(sys.argv[1:], _start_system))


async def _start_system(run: RunFolder, config: Config) -> System:
    # Here and not above: Ray reads its settings when it is imported, and `ray_session` makes them.
    from streamrl.services.launch.system import start_system

    return await start_system(run, config)


if __name__ == "__main__":
    main()
