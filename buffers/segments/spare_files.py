"""Log files that nobody needs any more, kept to be written over.

    in the log  ->  spare/NAME.going   without its name, but a reader may have it mapped
                ->  spare/NAME.free    nobody's: whoever renames it has it
                ->  in the log         under a new name, with a new index, which vouches for nothing that lay in it

A new file's blocks have to be found and its pages to be cleared, and those of a file that goes to be given back;
whoever syncs the same disk waits for all of it. A file that is written over needs none of that.

Guaranteed: a file becomes free only when nobody has it open or mapped, it has no other name, and the loss of its old
one is durable: so what is written over it shows under that name to nobody, also after a power cut. Two writers never
take the same one. Nothing here decides what may go.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from streamrl.errors import ComponentError, ResourceError
from streamrl.system.disk import NO_ROOM, move_file, sync_folder
from streamrl.system.file_removal import free, has_other_user, open_to_remove, take_name

_GOING: Final = ".going"
_FREE: Final = ".free"


def spare_folder(log: Path) -> Path:
    """Where the spare files lie for the segments in the folder `log`: beside it, on the same disk."""
    return log.parent / "spare"


def take_spare(path: Path) -> int | None:
    """Put a spare file in the place of `path`, an empty file of the caller's own, and open it. None when there is none.

    Raises:
        ResourceError: no room. ComponentError: the disk fails.
    """
    for spare in spare_folder(path.parent).glob(f"*{_FREE}"):
        if move_file(spare, path):
            return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    return None


class Held(NamedTuple):
    """A file that left the log, held open. path: its name among the spare ones, or None for one without a name."""

    fd: int
    path: Path | None

    @property
    def in_use(self) -> bool:
        """Whether anybody else has it, or may have it."""
        return has_other_user(self.fd, names=0 if self.path is None else 1)

    def let_go(self) -> None:
        """Remove what name it has: its blocks go with the last who has it. Raises OSError."""
        try:
            if self.path is not None:
                self.path.unlink(missing_ok=True)
        finally:
            os.close(self.fd)


class SpareFiles:
    """The spare files of one folder. One process puts files there; any may take one.

    most_bytes: of those that are free; 0 to keep none.

    Example:
        spares = SpareFiles(run / "queue/spare", 2**30)
        held = spares.put_aside(run / "queue/completions/replica-0-0-0.arrow")
        spares.make_durable([held], {run / "queue/completions"})
        spares.settle(held)     # once it is not `in_use`
    """

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._folder = folder
        self._most_bytes = most_bytes

    def put_aside(self, path: Path) -> Held | None:
        """Take a file's name. A spare file gets no other one. None when it is not there, or may not be written to: then
        its blocks go with the name. Raises OSError."""
        fd = open_to_remove(path)
        if fd is None:
            return None
        try:
            return Held(fd, self._rename(path))
        except OSError:
            os.close(fd)
            raise

    def _rename(self, path: Path) -> Path | None:
        """The new name of a file; None when it has none any more, as on a disk without room for the name."""
        aside = self._folder / f"{path.parent.name}-{path.stem}{_GOING}"
        if self._most_bytes and path.parent != self._folder:
            try:
                self._folder.mkdir(exist_ok=True)
                os.rename(path, aside)
                return aside
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
        os.unlink(path)
        return None

    def make_durable(self, held: list[Held], logs: set[Path]) -> None:
        """Make it durable that these files lost their names in the folders `logs`. Raises ComponentError."""
        if any(one.path is not None for one in held):
            for folder in (*logs, self._folder, self._folder.parent):
                sync_folder(folder)

    def settle(self, held: Held) -> None:
        """Keep a file that is in nobody's use, or give its blocks back if there are enough of them.

        Raises OSError or ComponentError.
        """
        try:
            kept = held.path is not None and self._keep(held.fd, held.path)
        except (OSError, ComponentError):
            os.close(held.fd)
            raise
        if kept:
            os.close(held.fd)
        else:
            free(held.fd)

    def keep_none(self) -> None:
        """From here on every file that is settled gives its blocks back."""
        self._most_bytes = 0

    def clear(self) -> None:
        """Remove all of them, also what others left here. Raises OSError."""
        for path in self._folder.glob("*"):
            fd = take_name(path)
            if fd is not None and has_other_user(fd):
                os.close(fd)
            elif fd is not None:
                free(fd)

    def _keep(self, fd: int, path: Path) -> bool:
        """Whether any writer may take it now. Else it has no name any more."""
        if self._has_space(os.fstat(fd).st_size):
            with suppress(ResourceError):
                if move_file(path, path.with_suffix(_FREE)):
                    return True
        path.unlink(missing_ok=True)
        return False

    def _has_space(self, num_bytes: int) -> bool:
        return num_bytes + sum(size for _, size in sizes(self._folder)) <= self._most_bytes


def sizes(folder: Path) -> list[tuple[str, int]]:
    """(name, bytes) of the free files in a folder of spare files."""
    found = []
    for path in folder.glob(f"*{_FREE}"):
        try:
            found.append((path.name, path.stat().st_size))
        except FileNotFoundError:
            continue  # a writer has taken it
    return found
