"""Which checkpoints go, and when: by their number after a save, by their bytes before one.

Guarantees: the newest verified checkpoint is never removed; a folder loses its name first and its files after that, so
half of one never looks like a damaged checkpoint. What cannot be read stays for a person to look at, as long as the
budget has room for it.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from streamrl.errors import DataError, ResourceError
from streamrl.learner.checkpoint.format import verify
from streamrl.learner.checkpoint.manifest import REPLACED, TEMPORARY, read_manifest
from streamrl.system.file_removal import remove_folder
from streamrl.types import Version


def remove_leftovers(root: Path) -> None:
    """Remove what a save that did not come to its end left. Raises OSError."""
    for path in root.glob(f"{TEMPORARY}*") if root.is_dir() else []:
        remove_folder(path)


def remove_older(root: Path, newest: Version, keep: int) -> None:
    """Keep the `keep` highest versions up to `newest`; what cannot be read stays. Raises OSError."""
    found = []
    for path in root.glob("step_*"):
        try:
            found.append((read_manifest(path).version, path))
        except DataError:
            if path.name.endswith(REPLACED):
                _remove(path)
    found = sorted((pair for pair in found if pair[0] <= newest), reverse=True)
    for _version, path in found[keep:]:
        _remove(path)


def free_space(root: Path, needed: int, budget: int) -> None:
    """Remove what has to go so that `needed` more bytes keep everything under `root` below `budget`.

    First what cannot be read, then the oldest; the newest verified one stays.

    Raises:
        ResourceError: that one and the new one do not fit together. Gives the figures. OSError.
    """
    sizes = {path: _size(path) for path in root.glob("step_*")} if root.is_dir() else {}
    excess = sum(sizes.values()) + needed - budget
    if excess <= 0:
        return
    for path in _in_order_of_worth(sizes):
        _remove(path)
        excess -= sizes[path]
        if excess <= 0:
            return
    raise ResourceError(
        f"a checkpoint of {needed:,} bytes and the one before it do not fit checkpoint.byte_budget = {budget:,}; allow "
        f"{excess:,} more"
    )


def oldest_step(root: Path) -> int:
    """The lowest step that a resume could begin with: of the committed checkpoints; 0 when there is none."""
    steps = []
    for path in root.glob("step_*") if root.is_dir() else []:
        try:
            steps.append(read_manifest(path).version.step)
        except DataError:
            continue
    return min(steps, default=0)


def _in_order_of_worth(paths: dict[Path, int]) -> Iterator[Path]:
    """What may go, the least worth first; not the newest verified one."""
    readable: list[tuple[Version, Path]] = []
    for path in sorted(paths):
        try:
            readable.append((read_manifest(path).version, path))
        except DataError:
            yield path
    readable.sort()
    kept = next((path for _, path in reversed(readable) if _is_whole(path)), None)
    yield from (path for _, path in readable if path != kept)


def _is_whole(path: Path) -> bool:
    try:
        verify(path)
    except DataError:
        return False
    return True


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def _remove(path: Path) -> None:
    """Take the name away first: a half-removed folder must not look like a damaged checkpoint."""
    leftover = path.with_name(f"{TEMPORARY}old_{path.name}")
    os.rename(path, leftover)
    remove_folder(leftover)
