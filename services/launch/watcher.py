"""Starts the owner, outlives it, and leaves nothing behind: no process, no shared memory, no socket, no Ray
folder.

Guarantees: when this process ends, every process that the owner started is gone, however it was started and
whoever was killed with -9: as their subreaper, the kernel makes this process the parent of each orphan. It
ends the owner when its own starter dies (end of file on the lifeline) or on a signal (ASK, INSIST), in
bounded time. Plain standard library, run as a script with `python -S`: it must be small and must not fail
with what it watches.

    streamrl up --(lifeline pipe)--> watcher --> owner --> Ray's processes, actors, reward children
"""

import ctypes
import glob
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time

PR_SET_CHILD_SUBREAPER = 36
# Between the polite signal and the final one, for what is left when the owner has ended.
POLITE_S = 1.0
# A process that survives SIGKILL this long hangs in the kernel; waiting longer would not end it.
GIVE_UP_S = 5.0
NUM_THREADS = 17
"""Its place among the fields of `stat_fields`."""
ASK, INSIST = signal.SIGTERM, signal.SIGQUIT
WAKING = (signal.SIGCHLD, signal.SIGINT, signal.SIGHUP, ASK, INSIST)


def main(order: dict) -> int:
    """Run one launch. `order`: owner (argv), fds (that the owner inherits), owner_only_fds (of those, the
    ones that are none of ours), lifeline_fd (or None), grace_s (seconds for the owner's clean stop),
    folders and prefixes (to remove at the end).

    Returns the owner's exit code, 128 + the signal's number when one ended it.
    """
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wakeup = wake_on_signals()
    owner = subprocess.Popen(order["owner"], pass_fds=order["fds"], process_group=0)
    for fd in order["owner_only_fds"]:
        os.close(fd)
    watch(owner, wakeup, order["lifeline_fd"], order["grace_s"])
    end_descendants()
    remove(order["folders"], order["prefixes"])
    return owner.returncode if owner.returncode >= 0 else 128 - owner.returncode


def wake_on_signals() -> int:
    """A descriptor on which the numbers of arriving signals can be read."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    os.set_blocking(reader, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in WAKING:
        signal.signal(number, lambda *_: None)
    return reader


def watch(owner: subprocess.Popen, wakeup: int, lifeline: int | None, grace_s: float) -> None:
    """Return when the owner has ended. Ask it to stop when the lifeline breaks or ASK arrives, and end it
    when the grace is over or INSIST arrives."""
    waits = [wakeup] if lifeline is None else [wakeup, lifeline]
    deadline = None
    while owner.poll() is None:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready = readable(waits, left)
        signals = os.read(wakeup, 512) if wakeup in ready else b""
        reap(keep=owner.pid)
        if deadline is None and (lifeline in ready or ASK in signals):
            deadline = time.monotonic() + grace_s
            waits = [wakeup]
            # SIGINT, since Ray's own SIGTERM handler prints a stack trace into the owner's log.
            owner.send_signal(signal.SIGINT)
        if INSIST in signals or (deadline is not None and time.monotonic() >= deadline):
            owner.kill()
            owner.wait()


def readable(descriptors: list[int], timeout_s: float | None) -> set[int]:
    """Those with something to read, or an end of file, within `timeout_s`. By poll, since
    select knows none above 1023 (`streamrl.system.poll`, which this script cannot import)."""
    waiting = select.poll()
    for descriptor in descriptors:
        waiting.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in waiting.poll(None if timeout_s is None else 1000 * timeout_s)}


def end_descendants() -> None:
    """End every process below this one: politely, then for good."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    for number, patience in ((signal.SIGTERM, POLITE_S), (signal.SIGKILL, GIVE_UP_S)):
        deadline = time.monotonic() + patience
        signalled: set[int] = set()
        while (left := descendants()) and time.monotonic() < deadline:
            # One that is forked meanwhile shows up in the next round.
            for pid in left - signalled:
                send(pid, number)
            signalled |= left
            # Wakes at the end of a child; the limit is for grandchildren, whose end nobody tells us.
            signal.sigtimedwait([signal.SIGCHLD], 0.05)
            reap()
    reap()


def descendants() -> set[int]:
    """Pids of all live processes below this one, zombies left out, from one pass over /proc."""
    parents: dict[int, int] = {}
    alive: set[int] = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (stat := stat_fields(int(entry))):
            parents[int(entry)] = int(stat[1])
            # A process whose first thread has ended is a zombie too: it lives while others do, and has its children.
            if stat[0] != "Z" or int(stat[NUM_THREADS]) > 1:
                alive.add(int(entry))
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found & alive - {os.getpid()}


def stat_fields(pid: int) -> list[str]:
    """State, parent, ... of a process from proc(5), as many as `NUM_THREADS` says and more; empty when it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            stat = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return stat[stat.rindex(")") + 2 :].split()


def send(pid: int, number: int) -> None:
    """Signal a process of ours; that it has just ended is what was wanted."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def reap(keep: int = 0) -> None:
    """Take the exit codes of ended orphans, but not that of `keep`, which somebody waits for."""
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != keep:
            stat = stat_fields(int(entry))
            if stat and stat[0] == "Z" and int(stat[1]) == os.getpid():
                os.waitpid(int(entry), os.WNOHANG)


def remove(folders: list[str], prefixes: list[str]) -> None:
    """Remove what lies outside the run folder."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    for prefix in prefixes:
        for path in glob.glob(glob.escape(prefix) + "*"):
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path, ignore_errors=True)
                continue
            try:
                os.unlink(path)
            except FileNotFoundError:
                continue


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
