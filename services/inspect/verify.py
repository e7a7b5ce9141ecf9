"""`streamrl queue --verify`: every checksum of a run's queue and checkpoints, and what does not hold.

Guarantees: reads only, and the run may be live; a checkpoint that retention takes away meanwhile is not damage, nor is
one that was never finished. It needs torch, which reads the checkpoints' tensors.
"""

import json
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
from safetensors import SafetensorError, safe_open

from streamrl.buffers.ledger.live_files import read_again
from streamrl.buffers.recovery.verify import Checked, Damage, Unfinished, verify_queue
from streamrl.errors import DataError
from streamrl.learner.checkpoint import checkpoint
from streamrl.learner.checkpoint.digest import tensor_digest
from streamrl.services.run.folder import RunFolder
from streamrl.services.run.view_state import human_bytes

_LENGTH = struct.Struct("<Q")


class RunChecked(msgspec.Struct, frozen=True, kw_only=True):
    """What was checked. checkpoints: those that are whole, by the name of their folder. damage, unfinished: of the
    queue and of the checkpoints; first of all those of the queue."""

    checkpoints: list[str]
    queue: Checked
    unfinished: list[Unfinished]
    damage: list[Damage]


def show(run: RunFolder, *, as_json: bool) -> bool:
    """Check everything and print what was found; whether there is damage."""
    checked = verify_run(run)
    print(msgspec.json.encode(checked).decode() if as_json else "\n".join(verdict_lines(checked)))
    return bool(checked.damage)


def verify_run(run: RunFolder) -> RunChecked:
    """Check everything. Never raises for what it finds."""
    whole: dict[str, int] = {}
    damage: list[Damage] = []
    for path in sorted(run.checkpoints_path.glob("step_*")):
        try:
            whole[path.name] = read_again(partial(checkpoint.verify, path)).version.step
        except DataError as error:
            found = _damage_of(path, run.path, error)
            # A live run removes its older checkpoints.
            damage += found if path.exists() else []
    queue = verify_queue(run.path, min(whole.values(), default=0))
    return RunChecked(
        checkpoints=list(whole),
        queue=queue,
        unfinished=[*queue.unfinished, *_unfinished(run)],
        damage=[*queue.damage, *damage],
    )


def verdict_lines(checked: RunChecked) -> list[str]:
    """What `--verify` looked at, and what it found."""
    queue = checked.queue
    return [
        f"{'ledger':<16}{queue.ledger_files} files, {queue.records} records",
        f"{'segments':<16}{queue.segments}, with {queue.frames} good frames of {queue.rows} rows",
        f"{'acknowledged':<16}{queue.acknowledged_frames} frames that the ledger names, compared with it",
        f"{'checkpoints':<16}{', '.join(checked.checkpoints) or 'none'}",
        f"{'bytes':<16}{human_bytes(queue.num_bytes)} of the queue",
        *_remarks(checked),
        *(_damage_line(damage) for damage in checked.damage),
        f"{'damage':<16}{len(checked.damage)} places" if checked.damage else "no damage",
    ]


def _remarks(checked: RunChecked) -> list[str]:
    never = "bytes that were never acknowledged: no damage"
    lines = [
        f"{'unfinished':<16}{one.file}: offset {one.offset}: {one.num_bytes} {never}" for one in checked.unfinished
    ]
    if checked.queue.elsewhere:
        lines.append(f"{'elsewhere':<16}{checked.queue.elsewhere} frames that other nodes wrote: not checked here")
    gone = checked.queue.gone
    if gone:
        text = f"{len(gone)} files that the ledger names, and that no resume needs: {', '.join(gone[:8])}"
        lines.append(f"{'gone':<16}{text}")
    return lines


def _damage_line(damage: Damage) -> str:
    where = damage.file if damage.offset is None else f"{damage.file}: offset {damage.offset}"
    kind = "acknowledged" if damage.acknowledged else "not acknowledged"
    return f"{'DAMAGE':<16}{where} ({kind}): {damage.what}"


def _unfinished(run: RunFolder) -> Iterator[Unfinished]:
    """Checkpoints that were not committed: under way, or left by a process that ended."""
    for folder in sorted(run.checkpoints_path.glob("tmp_*")):
        try:
            num_bytes = sum(path.stat().st_size for path in folder.iterdir())
        except FileNotFoundError:
            continue  # it was committed or removed meanwhile
        yield Unfinished(file=str(folder.relative_to(run.path)), offset=0, num_bytes=num_bytes)


def _damage_of(path: Path, run_folder: Path, error: DataError) -> list[Damage]:
    """What is wrong with a checkpoint: by tensor, where its manifest can be read, else as a whole."""
    try:
        info = checkpoint.read_manifest(path)
        tensors = [
            Damage(file=str((path / entry.name).relative_to(run_folder)), offset=offset, what=what, acknowledged=True)
            for entry in info.manifest.files
            for offset, what in _damaged_tensors(path / entry.name, entry.tensors)
        ]
    except DataError:
        tensors = []
    whole = Damage(file=str(path.relative_to(run_folder)), offset=None, what=str(error), acknowledged=True)
    return tensors or [whole]


def _damaged_tensors(path: Path, digests: dict[str, str]) -> Iterator[tuple[int, str]]:
    """(offset, what) of each tensor of a file that is not the one that was saved."""
    try:
        starts = _starts(path)
        with safe_open(path, framework="pt") as file:
            for name, digest in digests.items():
                if tensor_digest(file.get_tensor(name)) != digest:
                    yield starts[name], f"{path.name}: tensor {name} does not have its digest"
    except (SafetensorError, OSError, RuntimeError, ValueError, KeyError) as error:
        yield 0, f"{path.name}: its head cannot be read: {error}"


def _starts(path: Path) -> dict[str, int]:
    """Where each tensor's bytes begin in a safetensors file. Raises OSError, ValueError, KeyError."""
    with path.open("rb") as file:
        length = _LENGTH.unpack(file.read(_LENGTH.size).ljust(_LENGTH.size, b"\0"))[0]
        if length > path.stat().st_size:
            raise ValueError(f"a head of {length} bytes in a file of {path.stat().st_size}")
        head = json.loads(file.read(length))
    begin = _LENGTH.size + length
    return {name: begin + entry["data_offsets"][0] for name, entry in head.items() if name != "__metadata__"}
