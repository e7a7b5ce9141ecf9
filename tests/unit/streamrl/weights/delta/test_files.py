"""Deltas beside the versions: whole or not there, as long as they pay and there is room."""

from pathlib import Path

import numpy as np
import pytest
import torch
from support.kernels import NEEDS_KERNELS
from support.weights.delta_versions import RUN
from support.weights.published_versions import KEY, publish_steps

from streamrl.errors import DataError
from streamrl.types import Version
from streamrl.weights.delta.files import DeltaFiles
from streamrl.weights.manifest import WeightManifest, decode
from streamrl.weights.shm.shm import ShmPublisher, ShmSource
from streamrl.weights.transport.copies import VersionCopies

pytestmark = NEEDS_KERNELS


def weights(step: int, changed: int = 20, count: int = 4000) -> list[tuple[str, torch.Tensor]]:
    """Those of step 0, of which a few elements changed with every step."""
    tensor = torch.from_numpy(np.random.default_rng(0).normal(size=count).astype(np.float32)).to(torch.bfloat16)
    for number in range(1, step + 1):
        at = np.random.default_rng(number).integers(0, count, changed)
        tensor[torch.from_numpy(at)] *= 1.01
    return [("w", tensor), ("same", torch.ones(500))]


def deltas_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.delta*"))


def published(publisher: ShmPublisher, steps: int, changed: int = 20) -> tuple[list[WeightManifest], list[int]]:
    """Versions 0.0 on, each with its delta."""
    manifests = [publisher.publish(weights(0), Version(0, 0))]
    sizes = []
    for step in range(1, steps):
        manifests.append(publisher.publish(weights(step, changed), Version(0, step)))
        sizes.append(publisher.publish_delta(manifests[-2], manifests[-1]))
    return manifests, sizes


def test_a_delta_makes_the_version_that_it_lies_beside(tmp_path: Path) -> None:
    with ShmPublisher(RUN, KEY, tmp_path / "published") as publisher:
        (before, after), (size,) = published(publisher, 2)
        encoded, delta = DeltaFiles(tmp_path / "published").open(Version(0, 1))
        assert decode(encoded) == after
        assert size == (tmp_path / "published" / "0.1.delta").stat().st_size == len(delta) + len(encoded) + 8
        copies = VersionCopies(RUN, KEY, tmp_path / "copies")
        incoming = copies.begin(before)
        incoming.add(Path(before.location).read_bytes())
        incoming.finish()
        copies.apply(before, after, delta)
    with ShmSource(RUN, KEY, tmp_path / "copies").open(after) as opened:
        assert all(torch.equal(opened[name], tensor) for name, tensor in weights(1))
    with ShmSource(RUN, KEY, tmp_path / "copies").open(before) as opened:
        assert all(torch.equal(opened[name], tensor) for name, tensor in weights(0))


def test_a_delta_of_another_version_or_without_its_base_leaves_nothing(tmp_path: Path) -> None:
    made = publish_steps(tmp_path / "published", steps=3)
    first, second, third = made.versions.values()
    copies = VersionCopies(RUN, KEY, tmp_path / "copies")
    delta = DeltaFiles(tmp_path / "published").open(third.version)[1]
    with pytest.raises(DataError, match=r"no copy of 0\.2 here"):
        copies.apply(second, third, delta)
    incoming = copies.begin(first)
    incoming.add(Path(first.location).read_bytes())
    incoming.finish()
    with pytest.raises(DataError, match="these bytes are that of"):
        copies.apply(first, second, delta)
    assert [path.name for path in (tmp_path / "copies").iterdir()] == ["0.1.weights"]


def test_a_delta_that_does_not_pay_or_whose_base_is_gone_is_none(tmp_path: Path) -> None:
    with ShmPublisher(RUN, KEY, tmp_path / "published") as publisher:
        first = publisher.publish(weights(0), Version(0, 0))
        other = publisher.publish([("w", torch.randn(4000)), ("same", torch.zeros(500))], Version(0, 1))
        assert publisher.publish_delta(first, other) == 0
        publisher.unlink(first.version)
        third = publisher.publish(weights(2), Version(0, 2))
        publisher.unlink(other.version)
        assert publisher.publish_delta(other, third) == 0
        with pytest.raises(DataError, match="the version right before it"):
            publisher.publish_delta(third, third)
        assert deltas_in(tmp_path / "published") == []


def test_deltas_stay_below_one_version_in_full_and_the_oldest_go_first(tmp_path: Path) -> None:
    with ShmPublisher(RUN, KEY, tmp_path / "published") as publisher:
        manifests, sizes = published(publisher, 40, changed=300)
        full = manifests[-1].total_bytes
        there = DeltaFiles(tmp_path / "published").sizes()
        newest = [Version(0, step) for step in range(40 - len(there), 40)]
        assert sorted(there) == newest
        assert sum(there.values()) < full <= sum(there.values()) + sizes[-len(there) - 1]
        publisher.keep_only([Version(0, 39)])
        assert deltas_in(tmp_path / "published") == []


def test_deltas_take_of_the_budget_what_versions_leave_and_give_it_back(tmp_path: Path) -> None:
    full = 64 * ((8000 + 63) // 64) + 2000
    with ShmPublisher(RUN, KEY, tmp_path / "published", byte_budget=2 * full + 2000) as publisher:
        manifests, (size,) = published(publisher, 2)
        assert manifests[0].total_bytes == full
        assert 0 < size < 2000
        assert "versions that are still needed" in publisher.lack(full)
        assert deltas_in(tmp_path / "published") == ["0.1.delta"]
        publisher.unlink(Version(0, 0))
        assert publisher.lack(full + 2000 - size) == ""
        assert deltas_in(tmp_path / "published") == ["0.1.delta"]
        assert publisher.lack(full + 2001 - size) == ""
        assert deltas_in(tmp_path / "published") == []
    with ShmPublisher(RUN, KEY, tmp_path / "published", byte_budget=2 * full) as publisher:
        assert published(publisher, 2)[1] == [0]


def test_a_file_that_is_cut_off_is_named(tmp_path: Path) -> None:
    publish_steps(tmp_path / "published", steps=2)
    path = tmp_path / "published" / "0.2.delta"
    for size in (0, 5, 100):
        path.write_bytes(path.read_bytes()[:size])
        with pytest.raises(DataError, match=r"delta of version 0\.2.*take the version in full"):
            DeltaFiles(tmp_path / "published").open(Version(0, 2))
        publish_steps(tmp_path / "again", steps=2)
        path.write_bytes((tmp_path / "again" / "0.2.delta").read_bytes())
