"""Versions that hold adapters: small, never without the base that their manifest names, and merged for the engine."""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from support.weights.adapter_versions import (
    ADAPTED,
    ALPHA,
    KEY,
    RANK,
    RUN,
    AdapterVersions,
    adapter_tensors,
    served_tensors,
)

from streamrl.errors import DataError
from streamrl.models.adapters.merge import merged
from streamrl.types import Version
from streamrl.weights.folder import version_file
from streamrl.weights.manifest import AdapterFacts, TensorEntry, WeightManifest, combined_digest, decode, encode, sign
from streamrl.weights.manifest import verify as verify_manifest
from streamrl.weights.served import ServedVersions
from streamrl.weights.shm.shm import ALIGNMENT


@pytest.fixture
def versions(tmp_path: Path) -> Iterator[AdapterVersions]:
    made = AdapterVersions(tmp_path / "weights")
    with made.publisher:
        yield made


def verify(manifest: WeightManifest) -> None:
    verify_manifest(manifest, KEY, RUN)


def damage(path: Path, place: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))


def test_a_version_has_the_bytes_of_its_adapters_and_names_its_base(versions: AdapterVersions) -> None:
    manifest = versions.version(3)
    tensors = adapter_tensors(3)
    assert {entry.name for entry in manifest.tensors} == set(tensors)
    assert manifest.total_bytes <= sum(one.nbytes for one in tensors.values()) + len(tensors) * ALIGNMENT
    assert Path(manifest.location).stat().st_size == manifest.total_bytes < versions.base().total_bytes
    again = decode(encode(manifest))
    verify(again)
    assert again.base == versions.base()
    assert (again.adapters.rank, again.adapters.alpha, again.base.digest) == (RANK, ALPHA, versions.base().digest)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_engine_is_handed_the_whole_merged_model_in_its_format(tmp_path: Path, dtype: torch.dtype) -> None:
    versions = AdapterVersions(tmp_path / "weights", dtype)
    source = ServedVersions(RUN, KEY)
    with versions.publisher:
        for step in (1, 2):
            with source.open(versions.version(step)) as tensors:
                expected = served_tensors(step, dtype=dtype)
                assert tensors.keys() == expected.keys()
                for name, tensor in tensors.items():
                    assert tensor.dtype == dtype
                    # A different order of the same three operations may round once more.
                    torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-6 if name in ADAPTED else 0)


def test_a_merge_rounds_once_and_changes_neither_side() -> None:
    weight, lora_a, lora_b = torch.full((1, 1), 256.0, dtype=torch.bfloat16), torch.ones(2, 1), torch.ones(1, 2)
    # 256 + 0.6 * 2 lies above the half of bfloat16's step of 2 there; 0.6 rounded to bfloat16 and added twice does not.
    assert merged(weight, lora_a, lora_b, 0.6).item() == 258.0
    assert (weight.item(), lora_a.sum().item(), lora_b.sum().item()) == (256.0, 2.0, 2.0)


def changed(manifest: WeightManifest, versions: AdapterVersions, kind: str) -> WeightManifest:
    """A manifest signed like any other, by a publisher that is wrong."""
    facts = manifest.adapters
    assert facts is not None
    other: dict[str, Any] = {
        "another incarnation's base": {"base": versions.base(1)},
        "a step for a base": {"base": versions.publisher.publish(served_tensors(0).items(), Version(0, 77))},
        "a base that is changed": {"base": msgspec.structs.replace(facts.base, total_bytes=10**6)},
        "another run's base": {"base": sign(msgspec.structs.replace(facts.base, run_id="other"), KEY)},
        "another rank": {"rank": RANK + 1},
        "rank 0": {"rank": 0},
        "alpha 0": {"alpha": 0.0},
        "an infinite alpha": {"alpha": float("inf")},
    }
    return sign(msgspec.structs.replace(manifest, adapters=msgspec.structs.replace(facts, **other[kind])), KEY)


REFUSED = {
    "another incarnation's base": "not that of its incarnation",
    "a step for a base": "not that of its incarnation",
    "a base that is changed": "signature",
    "another run's base": "belongs to run 'other'",
    "another rank": "not one of rank 3",
    "rank 0": "rank 0 and alpha 3.0 are none",
    "alpha 0": "alpha 0.0 are none",
    "an infinite alpha": "alpha inf are none",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_version_whose_base_or_rank_is_wrong_is_refused(versions: AdapterVersions, kind: str) -> None:
    with pytest.raises(DataError, match=REFUSED[kind]):
        verify(changed(versions.version(1), versions, kind))


def test_rank_alpha_and_base_are_signed(versions: AdapterVersions) -> None:
    manifest = versions.version(1)
    for name, value in (("alpha", 4.0), ("rank", 1), ("base", versions.base(1))):
        facts = msgspec.structs.replace(manifest.adapters, **{name: value})
        with pytest.raises(DataError, match=r"weight manifest 0\.1 of run 'run-1': the signature"):
            verify(msgspec.structs.replace(manifest, adapters=facts))
    with pytest.raises(DataError, match="signature"):
        verify(msgspec.structs.replace(manifest, adapters=None))


def renamed(manifest: WeightManifest, names: dict[str, str | None]) -> WeightManifest:
    """With tensors called otherwise, or left out."""
    kept = [(names.get(entry.name, entry.name), entry) for entry in manifest.tensors]
    tensors = tuple(TensorEntry(name, *msgspec.structs.astuple(entry)[1:]) for name, entry in kept if name is not None)
    return sign(msgspec.structs.replace(manifest, tensors=tensors, digest=combined_digest(tensors)), KEY)


@pytest.mark.parametrize("other", [None, "layers.0.k_proj.lora_B.weight", "norm.lora_B.weight", "embed.weight"])
def test_adapters_that_are_not_pairs_of_a_matrix_of_the_base_are_refused(
    versions: AdapterVersions, other: str | None
) -> None:
    with pytest.raises(DataError, match=r"changes no matrix|not one of rank"):
        verify(renamed(versions.version(1), {"layers.0.q_proj.lora_B.weight": other}))


def test_a_base_is_verified_once_and_never_believed_unverified(versions: AdapterVersions) -> None:
    first, second, file = versions.version(1), versions.version(2), Path(versions.base().location)
    early, late = ServedVersions(RUN, KEY), ServedVersions(RUN, KEY)
    with early.open(first):
        pass
    # Bytes of the tensor that nobody has looked at since: copied on write, so `early` may see the change, and asks not.
    damage(file, versions.base().tensors[0].offset)
    with early.open(second) as tensors:
        assert tensors["norm.weight"].equal(served_tensors(2)["norm.weight"])
    with pytest.raises(DataError, match=r"version 0\.-1: tensor 'embed.weight' has digest"), late.open(second):
        pass


def test_without_its_base_a_version_is_refused_and_who_has_it_mapped_goes_on(versions: AdapterVersions) -> None:
    first, second = versions.version(1), versions.version(2)
    source = ServedVersions(RUN, KEY)
    with source.open(first):
        versions.publisher.unlink(versions.base().version)
    assert not version_file(versions.folder, Version(0, -1)).exists()
    with source.open(second) as tensors:
        assert tensors["embed.weight"].equal(served_tensors(2)["embed.weight"])
    with pytest.raises(DataError, match=r"version 0\.-1: .* is gone"), ServedVersions(RUN, KEY).open(second):
        pass


def is_mapped(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False


def test_the_base_of_a_newer_incarnation_takes_the_place_of_the_older_one(versions: AdapterVersions) -> None:
    old, new = versions.version(4), versions.version(4, incarnation=1)
    source = ServedVersions(RUN, KEY)
    files = [os.open(one.base.location, os.O_RDONLY) for one in (old, new)]
    try:
        seen = []
        for manifest in (old, new, old):
            with source.open(manifest) as tensors:
                seed = manifest.version.incarnation
                assert tensors["embed.weight"].equal(served_tensors(4, seed)["embed.weight"])
            del tensors
            seen.append([is_mapped(fd) for fd in files])
        # An evaluation of an older version may come later: it does not bring the old base back.
        assert seen == [[True, False], [False, True], [False, True]]
    finally:
        for fd in files:
            os.close(fd)


def test_a_base_leaves_no_memory_for_a_later_version_to_use_again(versions: AdapterVersions) -> None:
    versions.version(1)
    versions.publisher.unlink(Version(0, 1))
    assert versions.publisher._files.spare_bytes > 0
    versions.version(2)
    versions.publisher.unlink(versions.base().version)
    assert sorted(path.name for path in versions.folder.iterdir()) == ["0.2.weights"]
    versions.version(3)
    versions.publisher.unlink(Version(0, 3))
    assert versions.publisher._files.spare_bytes > 0


def test_facts_say_what_a_product_counts() -> None:
    assert AdapterFacts(base=None, rank=4, alpha=6.0).scale == 1.5
