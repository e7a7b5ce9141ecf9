"""The folder of one run: where things lie in it, what it says of itself, and what its state is.

Guarantees: `run.json` is written whole or not at all, carries no secret, and a folder of another schema is
refused. Knows nothing of who may use the folder (`run_lock`, `claim`) nor of what the files of other parts
contain.
"""

import errno
import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from streamrl.errors import ResourceError, RunFolderError
from streamrl.observability.evaluations import newest_evaluations, read_evaluations
from streamrl.services.run import run_lock
from streamrl.services.run.liveness import ProcessId
from streamrl.system.disk import sync_folder

SCHEMA = 1
SHARED_MEMORY = Path("/dev/shm")
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """The processes of one `up`. `runtime` holds its sockets and Ray's files and goes away with it. gateway: its URL;
    empty until there is one."""

    owner: ProcessId
    watcher: ProcessId
    runtime: str
    control: str
    started_ns: int
    ray_address: str = ""
    gateway: str = ""


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What `run.json` says. path: the folder in which it was written. `incarnation` counts the launches from 0; that of
    a version, which a learner that is replaced raises too, comes from the queue's ledger. accept_changed_data: the
    newest `up` said so. replicas, reward_workers: as many as a person scaled the run to; None while it has those of its
    configuration, or of autoscaling. store_token: under which it uses `checkpoint.folder`; empty without one."""

    schema: int = SCHEMA
    run_id: str
    name: str
    created_ns: int
    path: str = ""
    incarnation: int = 0
    launch: Launch | None = None
    accept_changed_data: bool = False
    replicas: int | None = None
    reward_workers: int | None = None
    store_token: str = ""


class RunState(StrEnum):
    """running: an owner lives. finished: it has its summary. failed: its last launch says why it ended."""

    NEW = "new"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


class RunFolder:
    """Paths and records of one run folder.

    A copy of a folder that is still there is another run: its id is new, so it shares nothing outside the folder with
    the original, whose processes are not its own. A folder that was moved is the same run.

    Example:
        run = RunFolder.open(Path("runs/quickstart"))
        print(run.metrics_path)
    """

    def __init__(self, path: Path, record: RunRecord, is_copy: bool = False) -> None:
        self.path = path
        self.record = record
        self._is_copy = is_copy

    @classmethod
    def create(cls, path: Path, name: str, record: RunRecord | None = None) -> "RunFolder":
        """Write the first `run.json` of a folder that exists, with its key and its subfolders. record: of a run that
        was elsewhere before, and goes on here."""
        run = cls(path, record or RunRecord(run_id=_new_id(), name=name, created_ns=time.time_ns()))
        for folder in (run.logs_path, run.queue_path, run.checkpoints_path, run.working_path):
            folder.mkdir(exist_ok=True)
        write_secret(run.key_path, secrets.token_bytes(32))
        run.save(run.record)
        sync_folder(path.parent)
        return run

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Read the `run.json` of a folder. Raises RunFolderError: none there, damaged, or of another
        schema.
        """
        record = _read_record(path)
        if not _is_copy(path, record):
            return cls(path, record)
        return cls(path, msgspec.structs.replace(record, run_id=_new_id(), launch=None), is_copy=True)

    @staticmethod
    def is_elsewhere(path: Path, record: RunRecord) -> bool:
        """Whether the run of a record has its folder on this machine, and `path`, which exists, is another one."""
        return _is_copy(path, record)

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def run_id(self) -> str:
        """12 hex digits; they are in the name of everything the run leaves outside its folder."""
        return self.record.run_id

    @property
    def incarnation(self) -> int:
        return self.record.incarnation

    @property
    def config_path(self) -> Path:
        return self.path / "config.toml"

    @property
    def lock_path(self) -> Path:
        return self.path / "lock"

    @property
    def key_path(self) -> Path:
        return self.path / "key"

    @property
    def token_path(self) -> Path:
        return self.path / "token"

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def events_path(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def evaluations_path(self) -> Path:
        return self.path / "evaluations.jsonl"

    @property
    def trace_path(self) -> Path:
        return self.path / "trace.json"

    @property
    def summary_path(self) -> Path:
        return self.path / "summary.json"

    @property
    def failure_path(self) -> Path:
        return self.path / "failure.json"

    @property
    def curve_path(self) -> Path:
        return self.path / "reward.png"

    @property
    def logs_path(self) -> Path:
        return self.path / "logs"

    @property
    def queue_path(self) -> Path:
        return self.path / "queue"

    @property
    def tokens_path(self) -> Path:
        """What the learner keeps of single tokens."""
        return self.path / "tokens"

    @property
    def checkpoints_path(self) -> Path:
        return self.path / "checkpoints"

    @property
    def export_path(self) -> Path:
        return self.path / "export"

    @property
    def adapters_path(self) -> Path:
        return self.path / "adapters"

    @property
    def working_path(self) -> Path:
        """Empty for ever: Ray's working_dir, which keeps the user's current folder off the workers' path."""
        return self.path / "empty"

    @property
    def shared_memory_prefix(self) -> str:
        """Name, in /dev/shm, that each shared-memory file of the run begins with."""
        return f"streamrl-{self.run_id}"

    def shared_memory_files(self) -> list[Path]:
        """What the run has in shared memory now."""
        return sorted(SHARED_MEMORY.glob(f"{self.shared_memory_prefix}*"))

    def key(self) -> bytes:
        """The 32 bytes that sign this run's weight manifests."""
        return self.key_path.read_bytes()

    def save(self, record: RunRecord) -> None:
        """Make `record` the folder's, whole or not at all."""
        record = msgspec.structs.replace(record, path=str(self.path.resolve()))
        write_whole(self.path / "run.json", msgspec.json.format(msgspec.json.encode(record)) + b"\n")
        self.record, self._is_copy = record, False

    def start_launch(self, launch: Launch) -> None:
        self.save(msgspec.structs.replace(self.record, launch=launch))

    def archive_failure(self) -> None:
        """Keep the report of a failure that is behind us, out of the way of the next one's."""
        if self.failure_path.exists():
            number = len(list(self.path.glob("failure.*.json")))
            self.failure_path.rename(self.path / f"failure.{number}.json")

    def owner(self) -> ProcessId | None:
        """The process that owns the run, or None when the recorded one is gone."""
        launch = self.record.launch
        return launch.owner if launch is not None and launch.owner.is_alive() else None

    def in_use_by(self) -> ProcessId | None:
        """The live process that last signed the lock: the owner, or an `up` that is about to start one."""
        if self._is_copy:
            return None  # the signature was copied, too
        signer = run_lock.holder(self.lock_path)
        return signer if signer is not None and signer.is_alive() else None

    def state(self) -> RunState:
        if self.in_use_by() is not None:
            return RunState.RUNNING
        if self.summary_path.exists():
            return RunState.FINISHED
        if self.failure_path.exists():
            return RunState.FAILED
        return RunState.NEW if self.record.launch is None else RunState.INTERRUPTED

    def summary(self) -> dict[str, Any] | None:
        """The figures of a finished run, or None."""
        return _read_json(self.summary_path)

    def write_summary(self, summary: dict[str, Any]) -> None:
        write_whole(self.summary_path, json.dumps(summary, indent=2).encode() + b"\n")

    def write_summary_with_evaluations(self, summary: dict[str, Any]) -> dict[str, Any]:
        """Write it with what `evaluations.jsonl` has, and return it so. Who adds to that file writes the summary after
        it, if there is one: whoever comes last sees the other's."""
        told: dict[str, Any] | None = None
        while told is None or told != self.evaluations():
            told = self.evaluations()
            self.write_summary({**summary, "evaluations": told})
        return {**summary, "evaluations": told}

    def evaluations(self) -> dict[str, dict[str, Any]]:
        """What was evaluated beside the run's own scores: the newest of each name."""
        return newest_evaluations(read_evaluations(self.evaluations_path))


def find_run(name_or_path: str | None, runs: Path = Path("runs")) -> RunFolder:
    """The run of a path, of a name under `runs`, or, when None, the one that was launched last.

    Raises RunFolderError naming what was looked for and what there is.
    """
    known = {path.parent.name: path.parent for path in sorted(runs.glob("*/run.json"))}
    if name_or_path is None:
        if not known:
            raise RunFolderError(f"no run in {runs}/; start one with `streamrl up CONFIG.toml`")
        return RunFolder.open(max(known.values(), key=lambda path: (path / "run.json").stat().st_mtime_ns))
    for path in (Path(name_or_path), runs / name_or_path):
        if (path / "run.json").is_file():
            return RunFolder.open(path)
    there = ", ".join(known) or "none"
    raise RunFolderError(f"no run folder {name_or_path!r}, here or under {runs}/; runs there: {there}")


def write_whole(path: Path, content: bytes) -> None:
    """Write a small file so that a reader, also after a crash, sees the old content or the new one."""
    beside = path.with_name(f".{path.name}.new")
    with explained(path), beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    sync_folder(path.parent)


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, from its first moment on."""
    with explained(path):
        path.unlink(missing_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn a full or unwritable disk into the message that says which, and what to do."""
    try:
        yield
    except PermissionError as error:
        raise RunFolderError(f"cannot write {path}: {error.strerror}; choose another folder with --runs") from error
    except NotADirectoryError as error:
        raise RunFolderError(f"cannot write {path}: a file is in its way; move it, or use --runs") from error
    except OSError as error:
        if error.errno not in _DISK_FULL:
            raise
        raise ResourceError(
            f"cannot write {path}: {error.strerror}; free some space, or choose another disk with --runs"
        ) from error


def _new_id() -> str:
    return secrets.token_hex(6)


def _is_copy(path: Path, record: RunRecord) -> bool:
    """Whether the folder in which the record was written is another one, and there still."""
    there = Path(record.path)
    try:
        if not record.path or not (there / "run.json").is_file() or there.samefile(path):
            return False
        content = _read_json(there / "run.json")
    except (OSError, RunFolderError):
        return True  # it is there, of another user or damaged: another id does no harm
    return content is not None and content.get("run_id") == record.run_id


def _read_record(path: Path) -> RunRecord:
    content = _read_json(path / "run.json")
    if content is None:
        raise RunFolderError(f"{path} is not a run folder: it has no run.json")
    if content.get("schema") != SCHEMA:
        raise RunFolderError(
            f"{path} was written with schema {content.get('schema')!r}, and this streamrl reads "
            f"schema {SCHEMA}; use the version that wrote it, or start a new folder with --fresh or --name"
        )
    try:
        return msgspec.convert(content, RunRecord)
    except msgspec.ValidationError as error:
        raise RunFolderError(f"{path}/run.json is damaged: {error}; start anew with --fresh") from error


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except NotADirectoryError as error:
        raise RunFolderError(f"{path.parent} is a file, not a run folder; move it, or use --name") from error
    except ValueError as error:
        raise RunFolderError(f"{path} is damaged: {error}; start a new folder with --fresh") from error
    if not isinstance(content, dict):
        raise RunFolderError(f"{path} is damaged: it holds no object; start a new folder with --fresh")
    return content
