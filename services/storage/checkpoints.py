"""A run's checkpoint as a set of objects, and a run folder made of such a set.

    checkpoint/...       the files of the checkpoint, as they are
    queue.msgpack        what the queue needs to go on from its step (`streamrl.buffers.recovery.carried`)
    metrics.jsonl        the metrics so far

and once for the run, under `start-...`, the weights after its warm-up. Rows do not travel: what was under way is
generated again.
"""

import os
import secrets
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import msgspec

from streamrl.buffers.ledger.ledger import Ledger, read_ledger
from streamrl.buffers.ledger.records import Record, RunHeader
from streamrl.buffers.recovery.carried import carried
from streamrl.buffers.segments.places import LEDGER_DIR
from streamrl.errors import DataError, FencedError
from streamrl.learner.checkpoint.manifest import REPLACED, CheckpointInfo, manifests, newest_by_bytes
from streamrl.services.storage.orders import Fetch, Upload
from streamrl.storage.object_set import ObjectSet, Source, fetch_set, missing_objects, put_set, read_set, set_names
from streamrl.storage.owners import newest_owner
from streamrl.storage.store import ObjectStore
from streamrl.storage.version_sets import VersionSets, version_of
from streamrl.system.disk import sync_folder

CHECKPOINT: Final = "checkpoint"
QUEUE: Final = "queue.msgpack"
METRICS: Final = "metrics.jsonl"
START: Final = "start"
STAGING: Final = "fetched"
"""In the run folder: what is being fetched."""


class CarriedQueue(msgspec.Struct, frozen=True):
    """Of the ledger: its newest header, and the records that go along."""

    header: RunHeader
    records: list[Record]


def upload(store: ObjectStore, order: Upload) -> dict[str, Any]:
    """Commit the newest checkpoint of the run folder; `step`, and `bytes` of what was put.

    Raises FencedError when another launch uses the address, DataError when the run folder has no checkpoint.
    """
    require_ours(store, order)
    run = Path(order.run_folder)
    with ExitStack() as opened:
        info, parts = _open_newest(run, opened)
        sets = VersionSets(store)
        there = [one for one in sets.search().sets if version_of(one) == info.version]
        if any(not missing_objects(store, one) for one in there):
            return {"step": info.version.step, "bytes": 0}
        _put_start(store, run)
        expected = {f"{CHECKPOINT}/{entry.name}": entry.digest for entry in info.manifest.files}
        facts = {"step": info.version.step}
        # Asked once more: a look, and the parts, take their time.
        require_ours(store, order)
        room = order.byte_budget
        made = sets.add(info.version, parts, facts, expected=expected, keep=order.keep, byte_budget=room)
    return {"step": info.version.step, "bytes": made.num_bytes}


def require_ours(store: ObjectStore, order: Upload) -> None:
    """Raises FencedError when another launch has taken the address over."""
    owner = newest_owner(store)
    if owner is None or owner.token == order.token:
        return
    raise FencedError(
        f"{store.address} was taken over by launch {owner.incarnation} of run {owner.run_id} ({owner.folder} there): "
        "this run's checkpoints go there no more; end one of the two"
    )


def fetch(store: ObjectStore, order: Fetch) -> dict[str, Any]:
    """Bring the newest whole checkpoint into the run folder. `step`: of what was fetched, None where nothing was;
    `skipped`: why newer ones were passed over; `aside`: where the queue's folder went that was there before."""
    run = Path(order.run_folder)
    staging = run / STAGING
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    here = newest_by_bytes(run / "checkpoints")
    fetched = VersionSets(store).fetch_newest(staging, above=None if here is None else here.version)
    found, aside = fetched.newest, ""
    if found is not None:
        if order.start and not (run / START).is_dir():
            _fetch_start(store, staging)
            (staging / START).rename(run / START)
        if order.queue:
            aside = _install_queue(staging / found.name / QUEUE, run)
        _install(staging / found.name, run, version_of(found).step)
    shutil.rmtree(staging)
    step = None if found is None else version_of(found).step
    return {"step": step, "skipped": list(fetched.skipped), "aside": aside}


# ---- up


def _open_newest(run: Path, opened: ExitStack) -> tuple[CheckpointInfo, dict[str, Source]]:
    """The newest checkpoint with its parts, open: retention may take its files' names away meanwhile."""
    for info in manifests(run / "checkpoints"):
        try:
            files = {path.name: opened.enter_context(path.open("rb")) for path in sorted(info.path.iterdir())}
        except FileNotFoundError:
            continue  # it went just now, since there is a newer one
        parts: dict[str, Source] = {f"{CHECKPOINT}/{name}": file for name, file in files.items()}
        return info, parts | _beside(run, info.version.step)
    raise DataError(f"{run} has no checkpoint to store")


def _beside(run: Path, step: int) -> dict[str, Source]:
    """What goes along with a checkpoint."""
    parts: dict[str, Source] = {}
    records = [record for file in read_ledger(run / LEDGER_DIR) for record in file.records]
    headers = [record for record in records if isinstance(record, RunHeader)]
    if headers:
        parts[QUEUE] = msgspec.msgpack.encode(CarriedQueue(headers[-1], carried(records, step)))
    if (run / METRICS).is_file():
        lines = (run / METRICS).read_bytes()
        parts[METRICS] = lines[: lines.rfind(b"\n") + 1]
    return parts


def _put_start(store: ObjectStore, run: Path) -> None:
    """The weights after the warm-up, once."""
    folder = run / START
    if not folder.is_dir() or _start_set(store) is not None:
        return
    with ExitStack() as opened:
        paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        parts = {path.relative_to(folder).as_posix(): opened.enter_context(path.open("rb")) for path in paths}
        put_set(store, f"{START}-{secrets.token_hex(4)}", parts, {})


def _start_set(store: ObjectStore) -> ObjectSet | None:
    """None where no whole one is there."""
    for name in set_names(key for key in store.list("") if key.startswith(f"{START}-")):
        try:
            found = read_set(store, name)
        except DataError:
            continue
        if not missing_objects(store, found):
            return found
    return None


# ---- down


def _fetch_start(store: ObjectStore, staging: Path) -> None:
    found = _start_set(store)
    if found is None:
        raise DataError(
            f"{store.address} has no whole copy of the weights after the warm-up, which the run refers to: begin anew "
            "under another name (--name)"
        )
    (staging / START).mkdir()
    fetch_set(store, found, staging / START)


def _install_queue(source: Path, run: Path) -> str:
    """Begin the queue's ledger with what came along; what was there before steps aside. Its new place, or ""."""
    aside = ""
    queue = run / Path(LEDGER_DIR).parts[0]
    if any((run / LEDGER_DIR).glob("*.log")):
        number = 1
        while (place := run / f"{queue.name}.before-{number}").exists():
            number += 1
        queue.rename(place)
        aside = str(place)
    queue.mkdir(exist_ok=True)
    if not source.is_file():
        return aside
    told = msgspec.msgpack.decode(source.read_bytes(), type=CarriedQueue)
    header = msgspec.structs.replace(told.header, previous_bytes=-1)
    ledger = Ledger(run / LEDGER_DIR, header, durability="disk", commit_interval_s=0.0)
    try:
        if told.records:
            ledger.append(*told.records).result()
    finally:
        ledger.close()
    sync_folder(run)
    return aside


def _install(staged: Path, run: Path, step: int) -> None:
    """Give what was fetched its places; the checkpoint comes last."""
    if (staged / METRICS).is_file():
        os.replace(staged / METRICS, run / METRICS)
    checkpoints = run / "checkpoints"
    checkpoints.mkdir(exist_ok=True)
    final = checkpoints / f"step_{step:06d}"
    if final.exists():
        replaced = final.with_name(final.name + REPLACED)
        shutil.rmtree(replaced, ignore_errors=True)
        final.rename(replaced)
    (staged / CHECKPOINT).rename(final)
    sync_folder(checkpoints)
    sync_folder(run)
