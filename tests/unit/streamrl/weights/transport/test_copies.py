"""Copies of versions on other nodes: opened as the original, or not there."""

import msgspec
import pytest
import torch

from streamrl.errors import DataError
from streamrl.types import Version
from streamrl.weights.manifest import WeightManifest
from streamrl.weights.shm.shm import ShmPublisher, ShmSource
from streamrl.weights.transport.copies import VersionCopies

RUN, KEY = "run-1", b"k" * 32
TENSORS = [("embed", torch.randn(33, 70)), ("norm", torch.randn(5)), ("none", torch.zeros(0, 4))]


@pytest.fixture
def publisher(tmp_path):
    with ShmPublisher(RUN, KEY, tmp_path / "published") as publisher:
        yield publisher


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "copies"


def content(manifest: WeightManifest) -> bytes:
    with open(manifest.location, "rb") as file:
        return file.read()


def copy(copies: VersionCopies, manifest: WeightManifest, data: bytes, piece: int = 1000) -> None:
    incoming = copies.begin(manifest)
    try:
        for start in range(0, len(data), piece):
            incoming.add(memoryview(data)[start : start + piece])
        incoming.finish()
    except DataError:
        incoming.abandon()
        raise


def test_a_copy_is_opened_as_the_original_also_when_that_is_gone(publisher, folder):
    copies = VersionCopies(RUN, KEY, folder)
    manifest = publisher.publish(TENSORS, Version(0, 1))
    copy(copies, manifest, content(manifest))
    publisher.unlink(manifest.version)
    with ShmSource(RUN, KEY, folder).open(manifest) as opened:
        assert all(torch.equal(opened[name], tensor) for name, tensor in TENSORS)
    assert copies.has(manifest.version)


@pytest.mark.parametrize("damage", ["bit", "short", "long"])
def test_a_damaged_version_leaves_nothing(damage, publisher, folder):
    copies = VersionCopies(RUN, KEY, folder)
    manifest = publisher.publish(TENSORS, Version(0, 1))
    data = bytearray(content(manifest))
    data[100] ^= damage == "bit"
    wrong = {"bit": bytes(data), "short": bytes(data[:-1]), "long": bytes(data) + b"\0"}[damage]
    with pytest.raises(DataError, match=r"version 0\.1"):
        copy(copies, manifest, wrong)
    assert not copies.has(manifest.version)
    assert list(folder.iterdir()) == []


def test_a_manifest_of_another_key_or_run_is_refused_before_any_byte(publisher, folder):
    manifest = publisher.publish(TENSORS, Version(0, 1))
    for copies in (VersionCopies("run-2", KEY, folder), VersionCopies(RUN, b"x" * 32, folder)):
        with pytest.raises(DataError, match="weight manifest"):
            copies.begin(manifest)
    with pytest.raises(DataError, match="signature"):
        VersionCopies(RUN, KEY, folder).begin(msgspec.structs.replace(manifest, location="/elsewhere"))
    assert list(folder.iterdir()) == []


def test_only_what_is_needed_is_kept_and_nothing_is_left_in_the_end(publisher, folder):
    copies = VersionCopies(RUN, KEY, folder)
    for step in range(3):
        manifest = publisher.publish(TENSORS, Version(0, step))
        copy(copies, manifest, content(manifest))
    copies.keep_only([Version(0, 2), Version(0, 9)])
    assert [copies.has(Version(0, step)) for step in range(3)] == [False, False, True]
    copies.close()
    assert not folder.exists()


def test_what_an_earlier_process_left_goes_first(publisher, folder):
    manifest = publisher.publish(TENSORS, Version(0, 1))
    copies = VersionCopies(RUN, KEY, folder)
    copy(copies, manifest, content(manifest))
    assert not VersionCopies(RUN, KEY, folder).has(manifest.version)
