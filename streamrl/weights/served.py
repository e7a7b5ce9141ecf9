"""Versions as an engine takes them: every weight under its Hugging Face name, whatever was published.

A version that holds low-rank adapters is opened with its base and merged, so engines know of no adapters. Guarantees:
tensors are handed out only after signatures, sizes and all digests of both hold, some of which another replica of the
node may have checked (`streamrl.weights.shm.shared_checks`); a base is verified once, and stays mapped until one of a
newer incarnation is opened. Any thread may open.
"""

import contextlib
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from streamrl.models.adapters.merge import merge
from streamrl.types import Version
from streamrl.weights.manifest import WeightManifest
from streamrl.weights.shm.mappings import VersionMappings
from streamrl.weights.shm.shared_checks import SharedChecks
from streamrl.weights.shm.shm import ShmSource

Tensors = Mapping[str, torch.Tensor]


class ServedVersions:
    """Opens versions of one run for one replica.

    Example:
        with ServedVersions(run_id, key).open(manifest) as tensors:
            engine.load_weights(tensors, manifest.version, UpdateMode.KEEP)
    """

    def __init__(self, run_id: str, key: bytes) -> None:
        self._run_id = run_id
        self._key = key
        self._one = threading.Lock()
        self._mappings = VersionMappings()
        self._checks = SharedChecks(key)
        self._base: tuple[Version, str, Tensors] | None = None
        """Version, digest and tensors of the newest base that was opened."""

    @contextlib.contextmanager
    def open(self, manifest: WeightManifest, folder: Path | None = None) -> Iterator[Tensors]:
        """The verified tensors of a version, valid inside the context: views, and what had to be merged.

        folder: of the node's copies, where the version is not where its manifest says. Raises DataError as
        `ShmSource.open` does, for the version and for its base.
        """
        # A node's copies are new files each time, and the memory of one that is gone is free as soon as it is unmapped.
        mappings = self._mappings if folder is None else None
        source = ShmSource(self._run_id, self._key, folder, mappings, self._checks)
        with source.open(manifest) as tensors:
            if manifest.adapters is None:
                yield tensors
                return
            base = self._base_of(manifest.adapters.base, source)
            merged = dict(merge(base.items(), tensors, manifest.adapters.scale))
            try:
                yield merged
            finally:
                merged.clear()

    def _base_of(self, manifest: WeightManifest, source: ShmSource) -> Tensors:
        with self._one:
            kept = self._base
            if kept is not None and kept[:2] == (manifest.version, manifest.digest):
                return kept[2]
            with source.open(manifest) as views:
                # Views outlive their context: the mapping stays as long as they do.
                tensors = dict(views)
            if kept is None or kept[0] < manifest.version:
                self._base = (manifest.version, manifest.digest, tensors)
            return tensors
