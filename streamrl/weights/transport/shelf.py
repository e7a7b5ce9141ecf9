"""What the publishing node has to offer to others: its versions in full and their deltas, as they lie in shared memory.

Guarantees: a way that it names moves as few bytes as any that is there, and its steps can be opened at that moment;
later they may be gone, which is a DataError. It writes nothing, and does not know how bytes travel. Without torch.
"""

import mmap
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import numpy as np

from streamrl.errors import DataError
from streamrl.types import Version
from streamrl.weights.delta.chain import ChainStep, Kind, plan_chain
from streamrl.weights.delta.files import Content, DeltaFiles
from streamrl.weights.folder import open_version, version_file
from streamrl.weights.manifest import WeightManifest, decode, encode, verify
from streamrl.weights.transport.pulls import TransferStep


class Item(NamedTuple):
    """What there may be on the shelf: a version in full, or its delta."""

    kind: Kind
    version: Version

    def __str__(self) -> str:
        return f"{'the delta of ' if self.kind == 'delta' else ''}version {self.version}"


class VersionShelf:
    """See the module. folder: the publisher's.

    Example:
        for step in shelf.plan(encoded, have=Version(0, 4)):
            content = shelf.content(Item(step.kind, step.version))
    """

    def __init__(self, run_id: str, key: bytes, folder: Path) -> None:
        self._run_id = run_id
        self._key = key
        self._folder = folder
        self._deltas = DeltaFiles(folder)

    def plan(self, wanted: bytes, have: Version | None) -> list[TransferStep]:
        """The steps from `have` to a version, which is given by its encoded manifest; None: from nothing.

        Raises DataError when the manifest is not ours, or the version was taken back and no delta leads to it.
        """
        manifest = decode(wanted)
        verify(manifest, self._key, self._run_id)
        version = manifest.version
        is_whole = self._full_bytes(version) == manifest.total_bytes
        anchors = {version: manifest.total_bytes} if is_whole else {}
        deltas = self._deltas.sizes() if have is not None else {}
        steps = plan_chain(have, version, deltas, anchors)
        if steps is None:
            path = version_file(self._folder, version)
            raise DataError(f"weights: version {version}: {path} is gone; ask the weight store for a newer version")
        return [self._step(step, manifest) for step in steps]

    def content(self, item: Item) -> Content:
        """Its bytes, as a view that stays as it is when the file is taken back. Raises DataError when it is gone."""
        if item.kind == "delta":
            return self._deltas.open(item.version)[1]
        path = version_file(self._folder, item.version)
        try:
            with open_version(path) as fd:
                return np.frombuffer(mmap.mmap(fd, 0, access=mmap.ACCESS_COPY), np.uint8)
        except (OSError, ValueError) as error:
            what = f"weights: {item}: {path} cannot be read"
            raise DataError(f"{what}: {error}; ask the weight store for a newer version") from error

    def still_there(self, kept: Collection[Version]) -> set[Item]:
        """The deltas that there are, and those of the versions `kept`: what a sender may have prepared for later."""
        return {Item("anchor", version) for version in kept} | {Item("delta", one) for one in self._deltas.sizes()}

    def _full_bytes(self, version: Version) -> int:
        try:
            return version_file(self._folder, version).stat().st_size
        except FileNotFoundError:
            return -1

    def _step(self, step: ChainStep, wanted: WeightManifest) -> TransferStep:
        if step.kind == "anchor":
            return TransferStep(step.kind, step.version, step.num_bytes, encode(wanted))
        manifest, delta = self._deltas.open(step.version)
        return TransferStep(step.kind, step.version, len(delta), manifest)
