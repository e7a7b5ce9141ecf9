"""One owner to a run folder: an advisory lock (`flock`) on `<run>/lock`, held as long as a process of the
run lives.

Guarantees: two holders never, whatever dies how (the kernel drops the lock with its last holder). The lock
passes from `up` to the owner and its watcher by inheriting the descriptor, so it is free exactly when the
clean-up is done. Knows nothing of what is in the folder.
"""

import errno
import fcntl
import os
import threading
from pathlib import Path

import msgspec

from streamrl.errors import ResourceError
from streamrl.services.run.liveness import ProcessId

_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class RunLock:
    """A held lock. `fd` is what children inherit; `release` gives up this process's share of it."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def take(cls, path: Path, wait_s: float = 0.0) -> "RunLock | None":
        """Take the lock of a file, made when absent (mode 0600), waiting at most `wait_s`. None: someone
        holds it. Raises ResourceError on a file system without locks.
        """
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if _try_lock(fd) or (wait_s > 0 and _wait_lock(fd, wait_s)):
                return cls(fd)
        except ResourceError:
            os.close(fd)
            raise
        os.close(fd)
        return None

    def sign(self) -> None:
        """Write into the file which process holds it, for the message of whoever comes second."""
        signature = msgspec.json.encode(ProcessId.own())
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, signature, 0)

    def release(self) -> None:
        """Leave the lock to who inherited it."""
        os.close(self.fd)

    def abandon(self) -> None:
        """Give the lock up for all: nothing was started under it."""
        os.ftruncate(self.fd, 0)
        os.close(self.fd)


def holder(path: Path) -> ProcessId | None:
    """The process that last signed the lock, alive or not; None if nobody did."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=ProcessId)
    except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def wait_until_free(path: Path, timeout_s: float) -> bool:
    """Wait until nobody holds the lock: every process of the run is gone. False when the time ran out."""
    lock = RunLock.take(path, timeout_s) if path.exists() else None
    if lock is not None:
        lock.release()
    return lock is not None or not path.exists()


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _WITHOUT_LOCKS:
            raise
        raise ResourceError(
            f"the file system of this run folder has no locks (flock: {error.strerror}), so two owners could share a "
            "run; mount it with locks (NFS: its lock daemon, Lustre: -o flock), or put runs elsewhere with --runs"
        ) from error
    return True


def _wait_lock(fd: int, wait_s: float) -> bool:
    """Block in the kernel, in a daemon thread of its own, since flock has no time-out.

    The thread works on a duplicate and closes it: got in time, `fd` keeps the lock; too late, nobody does.
    """
    waiter = threading.Thread(target=_lock_and_close, args=(os.dup(fd),), daemon=True)
    waiter.start()
    waiter.join(wait_s)
    return not waiter.is_alive()


def _lock_and_close(fd: int) -> None:
    fcntl.flock(fd, fcntl.LOCK_EX)
    os.close(fd)
