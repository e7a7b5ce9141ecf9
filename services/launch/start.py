"""Starts the processes of a run: the watcher, which starts the owner.

Guarantees: the control socket is bound before anything starts, so a client can connect at once and nobody
races for a name; the children inherit the run's lock; without `detach` they also hear of this process's
death. Light: imports neither Ray nor torch nor asyncio.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import msgspec

from streamrl.errors import ResourceError
from streamrl.services.launch import watcher
from streamrl.services.launch.claim import Claim
from streamrl.services.launch.environment import launch_environment, left_out
from streamrl.services.run.control.listener import listen_at
from streamrl.services.run.folder import SHARED_MEMORY, RunFolder

OWNER_COMMAND = (sys.executable, "-P", "-m", "streamrl.services.launch.owner")
# Of the time to stop, what the watcher keeps for itself: the rest after the owner's end.
SWEEP_S = watcher.POLITE_S + 1.0
# A Unix socket's path has at most 107 bytes, and Ray's are 75 below its temporary folder.
_LONGEST_TEMP = 20
# A session of Ray writes a few MiB of logs and settings into its temporary folder.
_RUNTIME_BYTES = 32 * 2**20


class LaunchOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What the owner is told on its command line, beside the run folder. No secret. notices: for the user."""

    lock_fd: int
    control_fd: int
    runtime: str
    started_ns: int
    state: str
    notices: list[str] = []


class Launched(msgspec.Struct, frozen=True):
    """A running launch as `up` sees it. Closing `lifeline` (or dying) ends it; it is None when detached."""

    process: subprocess.Popen[bytes]
    control: Path
    lifeline: IO[bytes] | None

    def close(self) -> None:
        """End it where it is not detached."""
        if self.lifeline is not None:
            self.lifeline.close()


def launch(claim: Claim, *, detach: bool, command: Sequence[str] = OWNER_COMMAND) -> Launched:
    """Start watcher and owner for a claimed run. Returns at once; the control socket answers when they are
    up.
    """
    assert claim.lock is not None, "a finished run is not launched"
    runtime = _make_runtime(Path(_short_temp()))
    control = runtime / "control.sock"
    listener = listen_at(control)
    lifeline_read, lifeline_write = (None, None) if detach else os.pipe()
    order = LaunchOrder(
        lock_fd=claim.lock.fd,
        control_fd=listener.fileno(),
        runtime=str(runtime),
        started_ns=time.time_ns(),
        state=claim.state,
        notices=[*left_out(os.environ), *claim.told],
    )
    owner = [*command, str(claim.run.path.resolve()), msgspec.json.encode(order).decode()]
    try:
        process = _start_watcher(claim, owner, order, lifeline_read)
    except OSError:
        shutil.rmtree(runtime)
        raise
    finally:
        listener.close()
        claim.lock.release()
        if lifeline_read is not None:
            os.close(lifeline_read)
    lifeline = None if lifeline_write is None else os.fdopen(lifeline_write, "wb", buffering=0)
    return Launched(process, control, lifeline)


def _start_watcher(claim: Claim, owner: list[str], order: LaunchOrder, lifeline: int | None) -> subprocess.Popen[bytes]:
    watch = {
        "owner": owner,
        "fds": [order.lock_fd, order.control_fd],
        "owner_only_fds": [order.control_fd],
        "lifeline_fd": lifeline,
        "grace_s": owner_grace_s(claim.config.deadlines.stop_s),
        "folders": [order.runtime],
        "prefixes": [str(SHARED_MEMORY / claim.run.shared_memory_prefix)],
    }
    with (claim.run.logs_path / "owner.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-S", "-P", watcher.__file__, json.dumps(watch)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=launch_environment(os.environ),
            pass_fds=[order.lock_fd, order.control_fd] + ([] if lifeline is None else [lifeline]),
            start_new_session=True,
        )


def owner_grace_s(stop_s: float) -> float:
    """Seconds that the owner has for its clean stop, when everything must be gone after `stop_s`."""
    return max(1.0, stop_s - SWEEP_S)


def remove_leftovers(run: RunFolder) -> None:
    """Remove what a launch, whose watcher was killed too, left outside the run folder. The lock must be
    ours.
    """
    launch = run.record.launch
    folders = [launch.runtime] if launch is not None else []
    watcher.remove(folders, [str(SHARED_MEMORY / run.shared_memory_prefix)])


def _make_runtime(temp: Path) -> Path:
    """A folder for the sockets and Ray's files. Raises ResourceError where there is no room for them."""
    free = shutil.disk_usage(temp).free
    if free < _RUNTIME_BYTES:
        raise ResourceError(
            f"{temp} has {free} bytes free, and Ray's files and sockets want {_RUNTIME_BYTES}; free some, or set "
            f"TMPDIR to another folder, of at most {_LONGEST_TEMP} letters"
        )
    return Path(tempfile.mkdtemp(prefix="srl-", dir=temp))


def _short_temp() -> str:
    """The user's temporary folder if the sockets below it keep within the limit, else /tmp."""
    chosen = tempfile.gettempdir()
    return chosen if len(chosen) <= _LONGEST_TEMP else "/tmp"
