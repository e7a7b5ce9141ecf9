"""Claim a run folder for one launch: make it, resume it, or say why not.

Guarantees: of two claims of one folder one fails with the pid of the other; a claim never changes a folder
that it refuses. Knows nothing of processes beyond the lock: it starts none.
"""

from pathlib import Path

import msgspec

from streamrl.config import dump, load
from streamrl.config.loading.full_paths import full_paths
from streamrl.config.schema.run import Config
from streamrl.errors import RunFolderError
from streamrl.services.launch.stored_run import (
    FETCHED,
    changed_keys,
    clear_half_made,
    fetch_newer,
    go_on,
    record_of_place,
    take_place,
)
from streamrl.services.run import run_lock
from streamrl.services.run.folder import RunFolder, RunState, explained, write_whole
from streamrl.services.run.run_lock import RunLock

# A `status` or `down` of the same moment holds the lock for an instant; the rest of a killed run, some
# seconds.
_INSTANT_S = 0.5
_CLEANUP_S = 15.0
# What an `up` that died before its first run.json leaves behind. The folder is then as good as new.
_HALF_MADE = (
    frozenset({"lock", "config.toml", ".config.toml.new", ".run.json.new", "key", "logs", "queue"})
    | {
        "checkpoints",
        "empty",
    }
    | FETCHED
)


class Claim(msgspec.Struct, frozen=True):
    """A claimed folder. `state` is FINISHED (nothing to do, `lock` is None), NEW, or what a resume starts
    from. told: sentences for the user, of what `checkpoint.folder` had.
    """

    run: RunFolder
    config: Config
    state: RunState
    lock: RunLock | None
    told: tuple[str, ...] = ()


def claim(config: Config, *, fresh: bool = False, accept_changed_data: bool = False) -> Claim:
    """Take the run folder of `config` for a launch.

    `fresh` takes the first free of `<name>`, `<name>-2`, `<name>-3`... `accept_changed_data` lets a resume go on though
    the data set is another one. Raises RunFolderError (in use, another schema, another configuration, not a run),
    ResourceError (the disk is full), and what `checkpoint.folder` fails with.
    """
    config = full_paths(config)
    if fresh:
        config = _free_name(config)
    path = Path(config.runs) / config.name
    _refuse_unusable(path)
    with explained(path):
        path.mkdir(parents=True, exist_ok=True)
    lock = _lock(path)
    try:
        taken = _take(path, config, lock, accept_changed_data, fresh)
    except BaseException:
        lock.abandon()
        raise
    if taken.lock is None:
        lock.abandon()
    return taken


def is_new(config: Config) -> bool:
    """Whether a claim of `config` would make its folder."""
    return not (Path(config.runs) / config.name / "run.json").exists()


def _refuse_unusable(path: Path) -> None:
    """Refuse a folder that is none of ours, or not of this schema, before even a lock is laid into it."""
    if (path / "run.json").exists():
        RunFolder.open(path)
    elif path.is_dir():
        _refuse_foreign(path)


def _free_name(config: Config) -> Config:
    base, count = config.name, 1
    while True:
        name = base if count == 1 else f"{base}-{count}"
        path = Path(config.runs) / name
        try:
            with explained(path):
                path.mkdir(parents=True)
        except FileExistsError:
            count += 1
        else:
            return msgspec.structs.replace(config, name=name)


def _lock(path: Path) -> RunLock:
    lock_path = path / "lock"
    with explained(lock_path):
        lock = RunLock.take(lock_path, _INSTANT_S)
        if lock is None and not _holder_lives(lock_path):
            lock = RunLock.take(lock_path, _CLEANUP_S)
        if lock is None:
            raise RunFolderError(_in_use(path))
        lock.sign()
    return lock


def _holder_lives(lock_path: Path) -> bool:
    holder = run_lock.holder(lock_path)
    return holder is not None and holder.is_alive()


def _in_use(path: Path) -> str:
    holder = run_lock.holder(path / "lock")
    who = f"process {holder.pid}" if holder is not None else "another process"
    return (
        f"run folder {path} is in use by {who}; look with `streamrl status {path}`, end it with "
        f"`streamrl down {path}`, or start another one with --fresh"
    )


def _take(path: Path, config: Config, lock: RunLock, accept_changed_data: bool, fresh: bool) -> Claim:
    if not (path / "run.json").exists():
        return _new(path, config, lock, fresh)
    run = RunFolder.open(path)
    stored = load(run.config_path)
    changed = changed_keys(stored, config)
    if changed:
        raise RunFolderError(_changed(path, changed))
    if run.summary_path.exists():
        return Claim(run, stored, RunState.FINISHED, None)
    stored = _with_place(run, stored, config)
    told = go_on(run, stored)
    state = RunState.FAILED if run.failure_path.exists() else RunState.INTERRUPTED
    run.archive_failure()
    number = run.incarnation + 1
    launch = {"incarnation": number, "launch": None, "accept_changed_data": accept_changed_data}
    run.save(msgspec.structs.replace(run.record, **launch))
    take_place(run, stored)
    return Claim(run, stored, state, lock, tuple(told))


def _with_place(run: RunFolder, stored: Config, config: Config) -> Config:
    """The run's configuration with the second place that it is given now."""
    if stored.checkpoint.folder != config.checkpoint.folder:
        checkpoint = msgspec.structs.replace(stored.checkpoint, folder=config.checkpoint.folder)
        stored = msgspec.structs.replace(stored, checkpoint=checkpoint)
        write_whole(run.config_path, dump(stored).encode())
    return stored


def _refuse_foreign(path: Path) -> None:
    foreign = sorted(entry.name for entry in path.iterdir() if entry.name not in _HALF_MADE)
    if foreign:
        raise RunFolderError(
            f"{path} exists, is no run folder, and holds {', '.join(foreign[:3])}; use --name, --runs or --fresh"
        )


def _new(path: Path, config: Config, lock: RunLock, fresh: bool) -> Claim:
    _refuse_foreign(path)
    record = record_of_place(path, config, fresh=fresh)
    clear_half_made(path)
    write_whole(path / "config.toml", dump(config).encode())
    told = fetch_newer(path, config, queue=True) if record is not None else []
    with explained(path):
        run = RunFolder.create(path, config.name, record)
    take_place(run, config)
    return Claim(run, config, RunState.INTERRUPTED if told else RunState.NEW, lock, tuple(told))


def _changed(path: Path, changed: list[str]) -> str:
    return (
        f"{path} was started with another configuration; it differs in {', '.join(changed)}. Resume it with "
        f"the old one (`streamrl up {path}/config.toml`), or start a new folder with --fresh or --name"
    )
