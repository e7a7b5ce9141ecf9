"""Versions in shared memory: what is opened is what was published, and what is broken is never handed out."""

import os
import re
from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrl.errors import ConfigError, DataError, FencedError, NonFiniteError, ResourceError
from streamrl.types import Version
from streamrl.weights.folder import remove_folder, shm_folder
from streamrl.weights.manifest import sign
from streamrl.weights.shm.shm import ALIGNMENT, ShmPublisher, ShmSource
from streamrl.weights.tensors import CHUNK_BYTES, snapshot, weights_digest

KEY = b"k" * 32
RUN = "run-1"
V1 = Version(0, 1)
SOURCE = ShmSource(RUN, KEY)


@pytest.fixture
def publisher(tmp_path):
    with ShmPublisher(RUN, KEY, tmp_path / "weights") as publisher:
        yield publisher


def build_tensors(*, seed: int = 0, dtype: torch.dtype = torch.float32) -> list[tuple[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"embed": (33, 7), "norm": (5,), "scale": (), "none": (0, 4), "large": (300, 700)}
    return [(name, torch.randn(shape, generator=generator).to(dtype)) for name, shape in shapes.items()]


def files(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "weights").iterdir())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_is_opened_is_bit_equal_to_what_was_published(publisher, dtype):
    tensors = build_tensors(dtype=dtype)
    manifest = publisher.publish(tensors, V1)
    with SOURCE.open(manifest) as opened:
        assert list(opened) == [name for name, _ in tensors]
        for name, tensor in tensors:
            assert opened[name].dtype == dtype
            assert opened[name].shape == tensor.shape
            assert torch.equal(opened[name], tensor)
    assert all(entry.offset % ALIGNMENT == 0 for entry in manifest.tensors)


@settings(max_examples=25, deadline=None)
@given(
    shapes=st.lists(st.lists(st.integers(0, 40), max_size=3), min_size=1, max_size=6),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)
def test_any_shapes_come_back(tmp_path_factory, shapes, dtype):
    tensors = [(f"t{i}", torch.randn(shape).to(dtype)) for i, shape in enumerate(shapes)]
    tensors.append(("one", torch.ones(1, dtype=dtype)))
    with ShmPublisher(RUN, KEY, tmp_path_factory.mktemp("shm") / "weights") as publisher:
        manifest = publisher.publish(tensors, V1)
        with SOURCE.open(manifest) as opened:
            assert all(torch.equal(opened[name], tensor) for name, tensor in tensors)
    assert manifest.digest == weights_digest(reversed(tensors))


def test_strides_and_gradients_do_not_matter(publisher):
    tensor = torch.randn(6, 4, requires_grad=True)
    manifest = publisher.publish([("w", tensor.t())], V1)
    assert manifest.digest == weights_digest([("w", tensor.detach().t().contiguous())])
    with SOURCE.open(manifest) as opened:
        assert torch.equal(opened["w"], tensor.detach().t())


def test_a_version_has_a_private_file_of_its_own(publisher, tmp_path):
    manifest = publisher.publish(build_tensors(), V1)
    assert os.stat(manifest.location).st_mode & 0o777 == 0o600
    assert os.stat(tmp_path / "weights").st_mode & 0o777 == 0o700
    publisher.publish(build_tensors(seed=1), Version(0, 2))
    assert files(tmp_path) == ["0.1.weights", "0.2.weights"]
    assert publisher.bytes_held == 2 * manifest.total_bytes


def test_a_published_version_is_never_overwritten(publisher):
    manifest = publisher.publish(build_tensors(), V1)
    with pytest.raises(FencedError, match=r"version 0\.1 exists .* never overwritten"):
        publisher.publish(build_tensors(seed=1), V1)
    with SOURCE.open(manifest) as opened:
        assert torch.equal(opened["norm"], build_tensors()[1][1])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("place", [0, 150_000, -1])
def test_invariant_12_a_non_finite_version_is_never_published(publisher, tmp_path, bad, dtype, place):
    tensors = build_tensors(dtype=dtype)
    dict(tensors)["large"].view(-1)[place] = bad
    with pytest.raises(NonFiniteError, match=r"tensor 'large' holds at least 1 "):
        publisher.publish(tensors, V1)
    assert files(tmp_path) == []
    assert publisher.bytes_held == 0


def test_invariant_12_the_largest_finite_numbers_are_published(publisher):
    count = CHUNK_BYTES // 2
    tensors = [
        (str(dtype), torch.full((count,), torch.finfo(dtype).max, dtype=dtype))
        for dtype in (torch.float32, torch.bfloat16, torch.float16)
    ]
    publisher.publish(tensors, V1)


def test_a_flipped_byte_is_found_and_the_tensor_named(publisher):
    manifest = publisher.publish(build_tensors(), V1)
    entry = manifest.tensors[1]
    with open(manifest.location, "r+b") as file:
        file.seek(entry.offset + 3)
        byte = file.read(1)[0]
        file.seek(entry.offset + 3)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(DataError, match=r"tensor 'norm' has digest"), SOURCE.open(manifest):
        pytest.fail("a damaged version was handed out")


@pytest.mark.parametrize("change", [-1, 1])
def test_a_file_of_another_size_is_refused(publisher, change):
    manifest = publisher.publish(build_tensors(), V1)
    os.truncate(manifest.location, manifest.total_bytes + change)
    with pytest.raises(DataError, match=r"its manifest says"), SOURCE.open(manifest):
        pytest.fail("a truncated version was handed out")


def test_a_dropped_tensor_and_a_foreign_key_are_refused(publisher):
    manifest = publisher.publish(build_tensors(), V1)
    dropped = msgspec.structs.replace(manifest, tensors=manifest.tensors[1:])
    foreign = sign(manifest, b"x" * 32)
    for forged in (dropped, foreign):
        with pytest.raises(DataError, match=r"signature"), SOURCE.open(forged):
            pytest.fail("a forged version was handed out")


def test_the_manifest_of_another_version_does_not_open_this_ones_bytes(publisher):
    old = publisher.publish(build_tensors(), V1)
    new = publisher.publish(build_tensors(seed=1), Version(0, 2))
    mixed = sign(msgspec.structs.replace(old, location=new.location), KEY)
    with pytest.raises(DataError, match=r"digest"), SOURCE.open(mixed):
        pytest.fail("two versions were mixed")


def test_a_version_that_was_taken_back_says_so(publisher, tmp_path):
    manifest = publisher.publish(build_tensors(), V1)
    publisher.unlink(V1)
    publisher.unlink(V1)
    assert files(tmp_path) == ["0.1.spare"]
    with pytest.raises(DataError, match=r"is gone; ask the weight store"), SOURCE.open(manifest):
        pytest.fail("an unlinked version was handed out")


def test_a_reader_keeps_its_version_when_it_is_unlinked(publisher):
    manifest = publisher.publish(build_tensors(), V1)
    with SOURCE.open(manifest) as opened:
        publisher.unlink(V1)
        assert torch.equal(opened["embed"], build_tensors()[0][1])


def test_a_view_that_outlives_its_context_stays_valid(publisher):
    with SOURCE.open(publisher.publish(build_tensors(), V1)) as opened:
        view = opened["large"]
    publisher.close()
    assert opened == {}
    assert torch.equal(view, build_tensors()[4][1])


def test_too_little_memory_is_found_before_anything_is_written(publisher, tmp_path):
    endless = torch.zeros(1).expand(2**43)
    with pytest.raises(ResourceError, match=r"needs 35,184,372,088,832 bytes of shared memory, .* are free"):
        publisher.publish([("w", endless)], V1)
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ([], r"no tensors"),
        ([("a", torch.ones(2)), ("a", torch.ones(2))], r"occurs twice"),
        ([("steps", torch.ones(2, dtype=torch.int64))], r"'steps' is int64; weights are float32"),
    ],
)
def test_what_cannot_be_weights_leaves_no_file(publisher, tmp_path, tensors, message):
    with pytest.raises(DataError, match=message):
        publisher.publish(tensors, V1)
    assert files(tmp_path) == []


def test_a_snapshot_does_not_change_with_the_model():
    tensor = torch.ones(4)
    copies = snapshot([("a", tensor), ("tied", tensor)])
    tensor.zero_()
    assert all(torch.equal(copy, torch.ones(4)) for _, copy in copies)


def test_close_leaves_nothing_even_of_an_earlier_incarnation(publisher, tmp_path):
    publisher.publish(build_tensors(), V1)
    later = ShmPublisher(RUN, KEY, tmp_path / "weights")
    later.publish(build_tensors(), Version(1, 1))
    later.close()
    assert not (tmp_path / "weights").exists()
    later.close()


def test_a_folder_that_others_may_read_is_refused(tmp_path):
    (tmp_path / "weights").mkdir(mode=0o755)
    with pytest.raises(ResourceError, match=r"must be a folder of user .* with mode 0700"):
        ShmPublisher(RUN, KEY, tmp_path / "weights")


def test_a_link_in_place_of_the_folder_is_refused_and_not_followed(tmp_path):
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    (target / "precious").touch()
    (tmp_path / "weights").symlink_to(target)
    with pytest.raises(ResourceError, match=r"remove it"):
        ShmPublisher(RUN, KEY, tmp_path / "weights")
    remove_folder(tmp_path / "weights")
    assert (target / "precious").exists()


@pytest.mark.parametrize("run_id", ["", "../x", "a/b", ".hidden", "a" * 200])
def test_a_run_id_that_is_no_file_name_is_refused(run_id):
    with pytest.raises(ConfigError, match=re.escape(repr(run_id))):
        shm_folder(run_id)
