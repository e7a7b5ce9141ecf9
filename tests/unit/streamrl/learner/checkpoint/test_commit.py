"""Checkpoints: whole or not there, whatever is torn and wherever the program ends."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from streamrl.errors import ComponentError, DataError, ResourceError
from streamrl.learner.checkpoint import checkpoint
from streamrl.learner.checkpoint import manifest as checkpoint_manifest
from streamrl.learner.checkpoint.checkpoint import CheckpointInfo, Snapshot, find_newest, prove_loaded, save
from streamrl.learner.checkpoint.digest import weight_digest
from streamrl.learner.checkpoint.retention import oldest_step
from streamrl.system.disk_space import DiskSpace
from streamrl.types import Version


def make_tensors(*, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randn(3, 4, generator=generator)
    return {
        "model/a.weight": shared,
        "model/transposed": shared.T,
        "exp_avg/a.weight": torch.randn(3, 4, generator=generator).to(torch.bfloat16),
        "step": torch.tensor(3.0),
        "empty": torch.zeros(0, 4),
    }


def make_checkpoint(
    root: Path,
    step: int,
    *,
    incarnation: int = 0,
    keep: int = 2,
    seed: int | None = None,
    room: DiskSpace | None = None,
    byte_budget: int | None = None,
) -> CheckpointInfo:
    snapshot = Snapshot(
        Version(incarnation, step),
        iter(make_tensors(seed=step if seed is None else seed).items()),
        ledger_position=step * 10,
        extra={"steps_done": step, "nested": {"text": "\N{GREEK SMALL LETTER PI}"}},
    )
    return save(root, snapshot, keep=keep, byte_budget=byte_budget, room=room)


def newest(root: Path) -> CheckpointInfo:
    info = find_newest(root).newest
    assert info is not None
    return info


def assert_holds(info: CheckpointInfo, *, seed: int) -> None:
    tensors = make_tensors(seed=seed)
    assert weight_digest((name, info.tensor(name)) for name in tensors) == weight_digest(tensors.items())


def test_what_is_saved_comes_back_exactly(tmp_path: Path) -> None:
    made = make_checkpoint(tmp_path, 7)
    info = newest(tmp_path)
    assert info == made
    assert (info.version, info.ledger_position) == (Version(0, 7), 70)
    assert info.extra == {"steps_done": 7, "nested": {"text": "\N{GREEK SMALL LETTER PI}"}}
    assert_holds(info, seed=7)
    assert info.path.name == "step_000007"
    with pytest.raises(DataError, match="no tensor 'model/b'"):
        info.tensor("model/b")


def test_invariant_10_a_checkpoint_is_safetensors_and_json_only(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, 1).path
    assert {file.name for file in path.iterdir()} == {"COMMITTED", "manifest.json", "tensors_00000.safetensors"}
    assert not any(b"\x80\x04" in file.read_bytes()[:2] for file in path.iterdir())


def test_large_states_are_cut_into_files_of_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "FILE_BYTES", 40)
    info = make_checkpoint(tmp_path, 1)
    assert len(info.manifest.files) == 3
    assert_holds(newest(tmp_path), seed=1)


def test_no_checkpoint_is_no_error(tmp_path: Path) -> None:
    assert find_newest(tmp_path / "none") == find_newest(tmp_path)
    assert find_newest(tmp_path).newest is None


def test_older_ones_go_when_a_newer_one_is_verified(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        make_checkpoint(tmp_path, step, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000003", "step_000004"]


def flip_byte(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "flip": flip_byte,
    "cut": lambda path: os.truncate(path, path.stat().st_size - 1),
    "empty": lambda path: os.truncate(path, 0),
    "remove": lambda path: path.unlink(),
    "extend": lambda path: path.write_bytes(path.read_bytes() + b"0"),
}


@pytest.mark.parametrize("name", ["COMMITTED", "manifest.json", "tensors_00000.safetensors"])
@pytest.mark.parametrize("damage", sorted(DAMAGES))
def test_a_damaged_one_is_passed_over_and_named(damage: str, name: str, tmp_path: Path) -> None:
    for step in (1, 2):
        make_checkpoint(tmp_path, step)
    DAMAGES[damage](tmp_path / "step_000002" / name)
    search = find_newest(tmp_path)
    assert search.newest is not None
    assert search.newest.version == Version(0, 1)
    (reason,) = search.skipped
    assert "step_000002" in reason


def test_files_of_another_checkpoint_are_noticed(tmp_path: Path) -> None:
    for step in (1, 2):
        make_checkpoint(tmp_path, step)
    other = tmp_path / "step_000001" / "tensors_00000.safetensors"
    (tmp_path / "step_000002" / "tensors_00000.safetensors").write_bytes(other.read_bytes())
    assert newest(tmp_path).version == Version(0, 1)


def test_a_newer_format_is_refused_with_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "FORMAT", 3)
        patch.setattr(checkpoint_manifest, "FORMAT", 3)
        make_checkpoint(tmp_path, 1)
    assert "format 3; this program reads 2" in find_newest(tmp_path).skipped[0]


def test_a_higher_incarnation_is_newer_at_a_lower_step(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, 9, incarnation=0)
    make_checkpoint(tmp_path, 5, incarnation=1)
    assert newest(tmp_path).version == Version(1, 5)


def test_the_same_step_again_replaces_the_one_of_the_lost_branch(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, 5, incarnation=0, seed=1)
    make_checkpoint(tmp_path, 5, incarnation=1, seed=2, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step_000005"]
    assert_holds(newest(tmp_path), seed=2)


def test_a_snapshot_is_of_the_moment_and_forgets_what_is_written(tmp_path: Path) -> None:
    model = {"a": torch.arange(4.0), "b": torch.ones(2)}
    snapshot = Snapshot(Version(0, 1), model.items(), ledger_position=0, extra={})
    for tensor in model.values():
        tensor.add_(1)
    assert snapshot.num_bytes == 24 + 2 * checkpoint.ENTRY_BYTES + checkpoint.MANIFEST_BYTES
    info = save(tmp_path, snapshot, keep=1)
    assert torch.equal(info.tensor("a"), torch.arange(4.0))
    assert torch.equal(info.tensor("b"), torch.ones(2))
    assert list(snapshot) == []


class Crash(BaseException):
    """Not an Exception: nothing may catch it, as nothing catches `kill -9`."""


def crash_at(monkeypatch: pytest.MonkeyPatch, number: int) -> list[str]:
    """Every system call that the commit depends on, the number-th of which never returns."""
    calls: list[str] = []

    def wrapped(name: str, real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            calls.append(name)
            if len(calls) == number:
                raise Crash
            return real(*arguments)

        return call

    for name in ("fdatasync", "rename", "posix_fallocate", "pwrite"):
        monkeypatch.setattr(os, name, wrapped(name, getattr(os, name)))
    return calls


@pytest.mark.parametrize("number", range(1, 26))
@pytest.mark.parametrize("same_step", [False, True])
def test_a_crash_at_any_step_of_the_commit_leaves_a_verified_checkpoint(
    number: int, same_step: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_checkpoint(tmp_path, 5, seed=1)
    step, incarnation = (5, 1) if same_step else (6, 0)
    with monkeypatch.context() as patch:
        calls = crash_at(patch, number)
        try:
            make_checkpoint(tmp_path, step, incarnation=incarnation, seed=2, keep=1)
            crashed = False
        except Crash:
            crashed = True
    assert crashed == (number <= len(calls))
    if not crashed:
        # Its contents, then its names, then its own name, and only then the older one's.
        assert calls[-4 - same_step :] == ["fdatasync", *["rename"] * (1 + same_step), "fdatasync", "rename"]
    info = newest(tmp_path)
    if info.version == (0, 5):
        assert_holds(info, seed=1)
    else:
        assert_holds(info, seed=2)
    make_checkpoint(tmp_path, 7, incarnation=2, seed=3, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step_000007"]


def test_a_full_disk_is_waited_out_and_leaves_the_older_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_checkpoint(tmp_path, 1)
    real, room = os.posix_fallocate, DiskSpace()
    pauses = []

    def full(handle: int, offset: int, length: int) -> None:
        pauses.append(room.pause)
        assert_holds(newest(tmp_path), seed=1)
        if len(pauses) == 3:
            monkeypatch.setattr(os, "posix_fallocate", real)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    make_checkpoint(tmp_path, 2, room=room)
    assert "no room for" in pauses[1]
    assert room.pause == ""
    assert_holds(newest(tmp_path), seed=2)


def test_a_save_that_gives_up_waiting_leaves_the_older_one_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_checkpoint(tmp_path, 1)
    room = DiskSpace()
    room.close()

    def full(handle: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(ResourceError, match=r"tensors_00000.*No space left.*MB free. Free disk space"):
            make_checkpoint(tmp_path, 2, room=room)
    assert [path.name for path in tmp_path.iterdir()] == ["step_000001"]
    assert_holds(newest(tmp_path), seed=1)


@pytest.mark.parametrize("call", ["fdatasync", "posix_fallocate", "pwrite", "rename"])
def test_a_failing_disk_is_an_error_at_once_and_leaves_the_older_one(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_checkpoint(tmp_path, 1)

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(ComponentError, match="Input/output error"):
            make_checkpoint(tmp_path, 2)
    assert newest(tmp_path).version == Version(0, 1)
    make_checkpoint(tmp_path, 2, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step_000002"]


def test_a_state_that_was_loaded_is_compared_tensor_by_tensor_with_what_was_saved(tmp_path: Path) -> None:
    info = make_checkpoint(tmp_path, 1)
    held = make_tensors(seed=1)
    prove_loaded(info, held.items())
    for wrong in (
        {**held, "exp_avg/a.weight": torch.zeros_like(held["exp_avg/a.weight"])},
        {name: tensor for name, tensor in held.items() if name != "exp_avg/a.weight"},
        {**held, "exp_avg/a.weight": held["exp_avg/a.weight"].float()},
        {**held, "exp_avg/b.weight": held["exp_avg/a.weight"]},
    ):
        with pytest.raises(DataError, match=r"step_000001 was read, but 1 tensors .*exp_avg/"):
            prove_loaded(info, wrong.items())


def test_bytes_that_the_disk_lost_are_noticed_before_the_folder_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_checkpoint(tmp_path, 1)
    real = os.fdatasync

    def lying(handle: int) -> None:
        real(handle)
        if (tmp_path / "tmp_step_000002" / "COMMITTED").exists():
            flip_byte(tmp_path / "tmp_step_000002" / "tensors_00000.safetensors")
            patch.setattr(os, "fdatasync", real)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", lying)
        with pytest.raises(DataError, match="tensors_00000"):
            make_checkpoint(tmp_path, 2, keep=1)
    assert [path.name for path in tmp_path.glob("step_*")] == ["step_000001"]


def test_a_failing_source_of_tensors_leaves_the_older_one(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, 1)

    def tensors() -> Iterator[tuple[str, torch.Tensor]]:
        yield "a", torch.zeros(1)
        raise RuntimeError("a rank is gone")

    with pytest.raises(RuntimeError, match="a rank is gone"):
        Snapshot(Version(0, 2), tensors(), ledger_position=0, extra={})
    assert newest(tmp_path).version == Version(0, 1)


def in_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def test_invariant_9_checkpoints_stay_below_their_budget_and_the_newest_verified_one_stays(tmp_path: Path) -> None:
    size = Snapshot(Version(0, 1), make_tensors(seed=1).items(), ledger_position=0, extra={}).num_bytes
    for step in range(1, 8):
        make_checkpoint(tmp_path, step, keep=5, byte_budget=size + 3 * 2000)
        assert in_bytes(tmp_path) <= size + 3 * 2000
        assert_holds(newest(tmp_path), seed=step)
    assert len(list(tmp_path.iterdir())) > 1


def test_what_cannot_be_read_goes_before_what_can_when_the_budget_is_full(tmp_path: Path) -> None:
    size = Snapshot(Version(0, 1), make_tensors(seed=1).items(), ledger_position=0, extra={}).num_bytes
    for step in (1, 2, 3):
        make_checkpoint(tmp_path, step, keep=9)
    flip_byte(tmp_path / "step_000002" / "manifest.json")
    room = in_bytes(tmp_path) - in_bytes(tmp_path / "step_000002")
    make_checkpoint(tmp_path, 4, keep=9, byte_budget=size + room)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000001", "step_000003", "step_000004"]


def test_a_damaged_newest_one_goes_and_the_newest_that_is_whole_stays(tmp_path: Path) -> None:
    size = Snapshot(Version(0, 1), make_tensors(seed=1).items(), ledger_position=0, extra={}).num_bytes
    for step in (1, 2, 3):
        make_checkpoint(tmp_path, step, keep=9)
    flip_byte(tmp_path / "step_000003" / "tensors_00000.safetensors")
    room = in_bytes(tmp_path / "step_000002")
    make_checkpoint(tmp_path, 4, keep=9, byte_budget=size + room)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000002", "step_000004"]


def test_a_checkpoint_that_does_not_fit_beside_the_one_before_is_refused_with_the_figures(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, 1)
    with pytest.raises(ResourceError, match=r"do not fit checkpoint\.byte_budget = 1,000; allow [0-9,]+ more"):
        make_checkpoint(tmp_path, 2, byte_budget=1000)
    assert_holds(newest(tmp_path), seed=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step_000001"]


def test_the_lowest_step_that_a_resume_could_begin_with_is_of_a_checkpoint_that_can_be_read(tmp_path: Path) -> None:
    assert oldest_step(tmp_path / "none") == oldest_step(tmp_path) == 0
    for step in (3, 4, 5):
        make_checkpoint(tmp_path, step, keep=9)
    assert oldest_step(tmp_path) == 3
    flip_byte(tmp_path / "step_000003" / "manifest.json")
    assert oldest_step(tmp_path) == 4
