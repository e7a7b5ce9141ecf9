"""What another node takes of versions that hold adapters: their base once, and never adapters without it."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from support.kernels import NEEDS_KERNELS
from support.weights.adapter_versions import KEY, RUN, AdapterVersions, adapter_tensors, served_tensors

from streamrl.errors import DataError
from streamrl.types import Version
from streamrl.weights.delta.files import DeltaFiles
from streamrl.weights.manifest import WeightManifest, encode
from streamrl.weights.served import ServedVersions
from streamrl.weights.transport.pulls import TransferStep, VersionPulls
from streamrl.weights.transport.shelf import Item, VersionShelf

BASE = Version(0, -1)
LIMIT_S = 20


class Wire:
    """Ways and bytes of what is published; `damage` makes other bytes of those of a version."""

    def __init__(self, folder: Path) -> None:
        self._shelf = VersionShelf(RUN, KEY, folder)
        self.taken: list[tuple[str, Version]] = []
        self.damage: Callable[[Version, bytes], bytes] = lambda version, content: content
        self.on_piece: Callable[[], None] = lambda: None

    async def find(self, wanted: bytes, have: Version | None) -> list[TransferStep]:
        return self._shelf.plan(wanted, have)

    async def receive(self, step: TransferStep) -> AsyncGenerator[bytes, None]:
        self.taken.append((step.kind, Version(*step.version)))
        content = self._shelf.content(Item(step.kind, step.version)).tobytes()
        self.on_piece()
        yield self.damage(step.version, content)

    async def close(self) -> None:
        pass


class Node:
    """One that pulls, and where it keeps what it has."""

    def __init__(self, published: Path, folder: Path) -> None:
        self.wire = Wire(published)
        self.folder = folder
        self.pulls = VersionPulls(RUN, KEY, folder, self.wire.find, self.wire)

    async def fetch(self, manifest: WeightManifest) -> None:
        async with asyncio.timeout(LIMIT_S):
            await self.pulls.fetch(manifest, encode(manifest))

    @property
    def names(self) -> list[str]:
        """Of the versions that are here."""
        return sorted(path.stem for path in self.folder.glob("*.*"))

    def check(self, manifest: WeightManifest) -> None:
        """A replica here makes of it what it should."""
        expected = served_tensors(manifest.version.step, manifest.version.incarnation)
        with ServedVersions(RUN, KEY).open(manifest, self.folder) as tensors:
            assert all(np.allclose(tensors[name], tensor, rtol=0, atol=1e-6) for name, tensor in expected.items())


@pytest.fixture
def versions(tmp_path: Path) -> Iterator[AdapterVersions]:
    made = AdapterVersions(tmp_path / "published")
    with made.publisher:
        yield made


@pytest.fixture
def node(versions: AdapterVersions, tmp_path: Path) -> Node:
    return Node(versions.folder, tmp_path / "copies")


async def test_a_node_takes_the_base_once_and_then_adapters_only(versions: AdapterVersions, node: Node) -> None:
    manifests = [versions.version(step) for step in (4, 5, 6)]
    for manifest in manifests:
        await node.fetch(manifest)
        node.check(manifest)
        node.pulls.keep_only([manifest.version])
    assert node.wire.taken == [("anchor", BASE), *(("anchor", Version(0, step)) for step in (4, 5, 6))]
    assert node.names == ["0.-1", "0.6"]
    assert node.pulls.figures.bytes == versions.base().total_bytes + sum(one.total_bytes for one in manifests)


async def test_another_incarnation_brings_its_own_base_and_the_old_one_goes_with_its_versions(
    versions: AdapterVersions, node: Node
) -> None:
    old, new = versions.version(4), versions.version(4, incarnation=1)
    await node.fetch(old)
    await node.fetch(new)
    assert node.names == ["0.-1", "0.4", "1.-1", "1.4"]
    node.check(old)
    node.check(new)
    node.pulls.keep_only([])
    assert node.names == ["1.-1", "1.4"]


@NEEDS_KERNELS
async def test_deltas_of_adapters_need_no_other_base(versions: AdapterVersions, node: Node) -> None:
    """Two steps of equal adapters: what is published of the second is a delta of nothing."""
    first = versions.version(1)
    second = versions.publisher.publish(adapter_tensors(1).items(), Version(0, 2), first.adapters)
    assert DeltaFiles(versions.folder).add(first, second, 10**9) > 0
    await node.fetch(first)
    await node.fetch(second)
    assert node.wire.taken[2:] == [("delta", Version(0, 2))]
    assert node.names == ["0.-1", "0.1", "0.2"]


async def test_the_base_of_a_version_that_is_on_its_way_is_kept(versions: AdapterVersions, node: Node) -> None:
    newer, manifest = versions.version(1, incarnation=1), versions.version(1)
    await node.fetch(newer)
    node.wire.on_piece = lambda: node.pulls.keep_only([newer.version])
    await node.fetch(manifest)
    assert node.names == ["0.-1", "0.1", "1.-1", "1.1"]
    assert node.pulls.figures.anchors == 4
    node.check(manifest)


@pytest.mark.parametrize("broken", [BASE, Version(0, 3)])
async def test_what_arrives_damaged_is_not_there_and_comes_whole_at_the_next_question(
    versions: AdapterVersions, node: Node, broken: Version
) -> None:
    manifest = versions.version(3)

    def damage(version: Version, content: bytes) -> bytes:
        return bytes([content[0] ^ 1]) + content[1:] if version == broken else content

    node.wire.damage = damage
    with pytest.raises(DataError, match=rf"version {broken}: tensor .* were damaged on their way"):
        await node.fetch(manifest)
    assert node.names == ([] if broken == BASE else ["0.-1"])
    node.wire.damage = lambda version, content: content
    await node.fetch(manifest)
    node.check(manifest)
    assert node.pulls.figures.failed_ways == 1


async def test_without_its_base_no_version_is_taken(versions: AdapterVersions, node: Node) -> None:
    manifest = versions.version(3)
    versions.publisher.unlink(BASE)
    with pytest.raises(DataError, match=r"version 0\.-1: .* is gone"):
        await node.fetch(manifest)
    assert (node.names, node.wire.taken) == ([], [])
