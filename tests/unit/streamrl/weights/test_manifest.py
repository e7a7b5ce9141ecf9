"""Manifests: what is signed cannot be changed, and what is refused says why."""

import subprocess
import sys

import msgspec
import pytest

from streamrl.errors import ConfigError, DataError
from streamrl.types import Version
from streamrl.weights.manifest import (
    TensorEntry,
    WeightManifest,
    combined_digest,
    decode,
    encode,
    sign,
    verify,
)

KEY = b"k" * 32
RUN = "run-1"


def build_manifest(*, run_id: str = RUN, step: int = 3, entries: tuple[TensorEntry, ...] | None = None):
    entries = build_entries() if entries is None else entries
    return WeightManifest(
        run_id=run_id,
        version=Version(0, step),
        source="shm",
        location="/dev/shm/streamrl-run-1/0.3.weights",
        tensors=entries,
        total_bytes=192,
        digest=combined_digest(entries),
    )


def build_entries() -> tuple[TensorEntry, ...]:
    return (
        TensorEntry("a", "float32", (4, 8), 0, 128, "00" * 8),
        TensorEntry("b", "bfloat16", (32,), 128, 64, "11" * 8),
    )


def test_a_signed_manifest_survives_the_wire_and_verifies():
    manifest = sign(build_manifest(), KEY)
    again = decode(encode(manifest))
    assert again == manifest
    assert isinstance(again.version, Version)
    verify(again, KEY, RUN)


@pytest.mark.parametrize(
    "change",
    [
        {"version": Version(0, 4)},
        {"location": "/dev/shm/other"},
        {"total_bytes": 193},
        {"digest": "f" * 16},
        {"signature": ""},
        {"signature": "0" * 64},
    ],
)
def test_any_change_after_signing_breaks_the_signature(change):
    with pytest.raises(DataError, match=r"signature does not match"):
        verify(msgspec.structs.replace(sign(build_manifest(), KEY), **change), KEY, RUN)


def test_dropping_a_tensor_breaks_the_signature():
    manifest = sign(build_manifest(), KEY)
    with pytest.raises(DataError, match=r"signature does not match"):
        verify(msgspec.structs.replace(manifest, tensors=manifest.tensors[:1]), KEY, RUN)


def test_the_key_of_another_run_is_refused():
    with pytest.raises(DataError, match=r"signature does not match"):
        verify(sign(build_manifest(), b"x" * 32), KEY, RUN)


def test_the_manifest_of_another_run_is_refused_by_name():
    with pytest.raises(DataError, match=r"belongs to run 'run-2', not to 'run-1'"):
        verify(sign(build_manifest(run_id="run-2"), KEY), KEY, RUN)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ((TensorEntry("a", "float32", (4,), 0, 12, ""),), r"not 12 bytes"),
        ((TensorEntry("a", "int64", (4,), 0, 32, ""),), r"cannot be weights"),
        ((TensorEntry("a", "float32", (-4,), 0, 16, ""),), r"cannot be weights"),
        ((TensorEntry("a", "float32", (64,), 0, 256, ""),), r"end at byte 256 of 192"),
        (
            (TensorEntry("a", "float32", (4,), 0, 16, ""), TensorEntry("b", "float32", (4,), 8, 16, "")),
            r"'b' at byte 8 overlaps",
        ),
        ((TensorEntry("a", "float32", (4,), -8, 16, ""),), r"overlaps"),
        (
            (TensorEntry("a", "float32", (4,), 0, 16, ""), TensorEntry("a", "float32", (4,), 64, 16, "")),
            r"occurs twice",
        ),
    ],
)
def test_a_signed_manifest_that_contradicts_itself_is_refused(entries, message):
    with pytest.raises(DataError, match=message):
        verify(sign(build_manifest(entries=entries), KEY), KEY, RUN)


def test_a_digest_that_is_not_that_of_the_tensors_is_refused():
    manifest = msgspec.structs.replace(build_manifest(), digest="f" * 16)
    with pytest.raises(DataError, match=r"its digest ffffffffffffffff is not that of its 2 tensors"):
        verify(sign(manifest, KEY), KEY, RUN)


def test_the_digest_does_not_depend_on_order_or_place_but_on_everything_else():
    a, b = build_entries()
    digest = combined_digest((a, b))
    moved = msgspec.structs.replace(a, offset=4096)
    assert combined_digest((b, moved)) == digest
    for change in ({"name": "c"}, {"dtype": "float16"}, {"shape": (8, 4)}, {"digest": "22" * 8}):
        assert combined_digest((msgspec.structs.replace(a, **change), b)) != digest


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x80", encode(sign(build_manifest(), KEY))[:-3]])
def test_bytes_that_are_no_manifest_are_a_data_error(data):
    with pytest.raises(DataError, match=r"no weight manifest"):
        decode(data)


def test_a_short_key_is_refused():
    with pytest.raises(ConfigError, match=r"a key of 3 bytes"):
        sign(build_manifest(), b"abc")


def test_manifest_folder_and_store_import_no_torch():
    code = (
        "import sys, streamrl.weights.manifest, streamrl.weights.folder, streamrl.weights.store;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
