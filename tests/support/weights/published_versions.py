"""Versions as a publisher leaves them in shared memory, with their deltas, and what another node made of them."""

from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from support.weights.delta_versions import RUN, build_version, flat, holds

from streamrl.types import Version
from streamrl.weights.delta.files import DeltaFiles
from streamrl.weights.folder import make_folder, version_file
from streamrl.weights.manifest import WeightManifest, sign
from streamrl.weights.transport.shelf import VersionShelf

KEY = b"k" * 32
ELEMENTS = 2000


@dataclass
class Published:
    """versions: their manifests."""

    folder: Path
    versions: dict[Version, WeightManifest]
    shelf: VersionShelf

    @property
    def newest(self) -> WeightManifest:
        return self.versions[max(self.versions)]


def publish_steps(folder: Path, *, steps: int, incarnation: int = 0, seed: int = 0, deltas: bool = True) -> Published:
    """`steps` versions from step 1 on, each a few changed elements from the one before; deltas from the second on."""
    make_folder(folder)
    chance = np.random.default_rng([seed, incarnation])
    weights = {name: chance.integers(0, 2**16, ELEMENTS).astype(np.uint16) for name in ("embed", "norm", "head")}
    made: dict[Version, WeightManifest] = {}
    files = DeltaFiles(folder)
    for step in range(1, steps + 1):
        weights = {name: bits.copy() for name, bits in weights.items()}
        weights["head"][chance.integers(0, ELEMENTS, 20)] += np.uint16(1)
        weights["embed"][chance.integers(0, ELEMENTS, 20)] ^= np.uint16(1 << 15)
        tensors = {name: flat("bfloat16", bits) for name, bits in weights.items()}
        manifest, content = build_version(step, tensors, gap=10, incarnation=incarnation)
        path = version_file(folder, manifest.version)
        path.write_bytes(content.tobytes())
        manifest = sign(msgspec.structs.replace(manifest, location=str(path)), KEY)
        made[manifest.version] = manifest
        if deltas and step > 1:
            size = files.add(made[Version(incarnation, step - 1)], manifest, 10**9)
            assert 0 < size < manifest.total_bytes / 4
    return Published(folder, made, VersionShelf(RUN, KEY, folder))


def wrong_copies(folder: Path, published: Published) -> list[str]:
    """Names of the copies that are not, bit for bit, the tensors of the version that they are called after."""
    wrong = []
    for path in folder.glob("*.weights"):
        incarnation, step = path.stem.split(".")
        manifest = published.versions[Version(int(incarnation), int(step))]
        content = np.frombuffer(path.read_bytes(), np.uint8)
        if len(content) != manifest.total_bytes or not holds(manifest, content):
            wrong.append(path.name)
    return wrong
