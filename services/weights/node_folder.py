"""Where a run lies on a node that is not the one it was started on.

Guarantees: each such node has a folder of its own for the run, below the one that its environment variable names, with
an id that stays as long as the folder does, whatever Ray is started anew; so a reference to a row that lies there is
good for a resumed run too. Knows nothing of what is written into it.
"""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

import msgspec

from streamrl.errors import ConfigError, DataError
from streamrl.services.run.folder import RunFolder, RunRecord, write_secret, write_whole

NODE_RUNS = "STREAMRL_NODE_RUNS"
"""Set it where Ray is started on a node: a folder on a disk of that node."""


class Visit(msgspec.Struct, frozen=True):
    """What another node is told of a run: what its `run.json` says, and its key."""

    record: RunRecord
    key: bytes


def enter(visit: Visit, environment: Mapping[str, str] = os.environ) -> tuple[RunFolder, str]:
    """The run's folder on this node, made when absent, and the node's id. One process at a time.

    Raises ConfigError when the node does not say where runs lie on it, RunFolderError when the disk refuses.
    """
    folder = _folder(visit.record.run_id, environment)
    if folder is None:
        raise ConfigError(
            f"a part of run {visit.record.name!r} is placed on node {os.uname().nodename}, which does not say where "
            f"runs lie on it: start Ray there with {NODE_RUNS}=/a/folder/on/its/disk in its environment"
        )
    folder.mkdir(parents=True, exist_ok=True)
    run = RunFolder(folder, visit.record)
    for part in (run.logs_path, run.queue_path):
        part.mkdir(exist_ok=True)
    if not run.key_path.exists():
        write_secret(run.key_path, visit.key)
    run.save(visit.record)
    if not _id_path(folder).exists():
        write_whole(_id_path(folder), secrets.token_hex(6).encode())
    return run, _read_id(folder)


def id_here(run_id: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """The id of this node for a run; None when it never had a part of it."""
    folder = _folder(run_id, environment)
    return _read_id(folder) if folder is not None and _id_path(folder).exists() else None


def _folder(run_id: str, environment: Mapping[str, str]) -> Path | None:
    root = environment.get(NODE_RUNS)
    return Path(root) / run_id if root else None


def _id_path(folder: Path) -> Path:
    return folder / "node"


def _read_id(folder: Path) -> str:
    node = _id_path(folder).read_text()
    if len(node) != 12 or not set(node) <= set("0123456789abcdef"):
        raise DataError(f"{_id_path(folder)} holds {node[:40]!r} and not the id of a node, 12 hex digits")
    return node
