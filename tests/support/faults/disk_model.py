"""What a disk keeps of what a process wrote: a model of the page cache, fed with every call that changes a folder.

Strict, as POSIX allows: bytes are safe after a sync of their file, names after a sync of their folder, and nothing
else is. `after_power_cut` writes down what is left when the power goes: with no random source all that was not
synced is lost; with one, each 512-byte block, size and folder of it is kept or lost by chance.
"""

import copy
import random
from dataclasses import dataclass, field
from pathlib import Path

BLOCK_BYTES = 512


@dataclass
class File:
    """live: what a read gives now. durable: what the last sync left."""

    live: bytearray = field(default_factory=bytearray)
    durable: bytes = b""

    def write(self, offset: int, data: bytes) -> None:
        self.resize(max(len(self.live), offset + len(data)))
        self.live[offset : offset + len(data)] = data

    def resize(self, size: int) -> None:
        del self.live[size:]
        self.live.extend(bytes(size - len(self.live)))

    def sync(self) -> None:
        self.durable = bytes(self.live)

    def kept(self, chance: random.Random | None) -> bytes:
        """The contents after a power cut."""
        if chance is None or self.durable == self.live:
            return self.durable
        size = chance.choice([len(self.durable), len(self.live)])
        kept = bytearray(self.durable[:size].ljust(size, b"\0"))
        for start in range(0, min(size, len(self.live)), BLOCK_BYTES):
            if chance.random() < 0.5:
                block = bytes(self.live[start : min(size, start + BLOCK_BYTES)])
                kept[start : start + len(block)] = block
        return bytes(kept)


@dataclass
class Folder:
    """Names, as they are and as the last sync of the folder left them."""

    live: dict[str, "File | Folder"] = field(default_factory=dict)
    durable: dict[str, "File | Folder"] = field(default_factory=dict)

    def sync(self) -> None:
        self.durable = dict(self.live)


class DiskModel:
    """The folder `root` and all below it. Paths are relative to it.

    A model is made of a folder whose every byte counts as durable; `copy` gives one that goes on from there.
    """

    def __init__(self, root: Path) -> None:
        self._top = _scan(root)

    def copy(self) -> "DiskModel":
        return copy.deepcopy(self)

    def create(self, path: Path) -> File:
        file = File()
        self._parent(path).live[path.name] = file
        return file

    def make_folder(self, path: Path) -> None:
        self._parent(path).live[path.name] = Folder()

    def remove(self, path: Path) -> None:
        del self._parent(path).live[path.name]

    def rename(self, old: Path, new: Path) -> None:
        self._parent(new).live[new.name] = self._parent(old).live.pop(old.name)

    def at(self, path: Path) -> File | Folder:
        node: File | Folder = self._top
        for name in path.parts:
            assert isinstance(node, Folder)
            node = node.live[name]
        return node

    def file(self, path: Path) -> File:
        node = self.at(path)
        assert isinstance(node, File), path
        return node

    def differences(self, root: Path) -> list[str]:
        """Where the folder is not what the calls that were seen make of it: a call that went past them."""
        real, model = _contents(_scan(root)), _contents(self._top)
        return sorted(path for path in real.keys() | model.keys() if real.get(path) != model.get(path))

    def after_power_cut(self, target: Path, chance: random.Random | None = None) -> None:
        """Write what is left to the folder `target`, which must not exist."""
        _write(self._top, target, chance)

    def _parent(self, path: Path) -> Folder:
        parent = self.at(path.parent)
        assert isinstance(parent, Folder), path
        return parent


def _scan(root: Path) -> Folder:
    folder = Folder()
    for path in root.iterdir():
        folder.live[path.name] = _scan(path) if path.is_dir() else _durable(path.read_bytes())
    folder.sync()
    return folder


def _durable(content: bytes) -> File:
    return File(bytearray(content), content)


def _contents(folder: Folder, prefix: str = "") -> dict[str, bytes]:
    """Contents by path; a folder has those of its name and a slash."""
    found: dict[str, bytes] = {}
    for name, node in folder.live.items():
        if isinstance(node, Folder):
            found |= {f"{prefix}{name}/": b"", **_contents(node, f"{prefix}{name}/")}
        else:
            found[prefix + name] = bytes(node.live)
    return found


def _write(folder: Folder, target: Path, chance: random.Random | None) -> None:
    target.mkdir()
    names = folder.durable if chance is None else chance.choice([folder.durable, folder.live])
    for name, node in names.items():
        if isinstance(node, Folder):
            _write(node, target / name, chance)
        else:
            (target / name).write_bytes(node.kept(chance))
