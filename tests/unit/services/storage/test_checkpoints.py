"""A run's checkpoints in its second place, and a run folder made of that alone: each group is trained once."""

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.runs.small_run import GROUPS, SmallRun
from support.storage.stores import DiedError, DyingStore, How, memory_store

from streamrl.errors import DataError, FencedError
from streamrl.learner.checkpoint.checkpoint import find_newest
from streamrl.services.storage.checkpoints import STAGING, fetch, upload
from streamrl.services.storage.orders import Fetch, Upload
from streamrl.storage.object_set import keys_of
from streamrl.storage.owners import Owner, claim
from streamrl.storage.store import ObjectStore
from streamrl.storage.version_sets import VersionSets, version_of

OURS = "our-token"


class StoppedError(Exception):
    """The run is left where it is."""


def run_until(folder: Path, step: int) -> Path:
    """A run folder whose run ended right after its checkpoint of `step`."""
    folder.mkdir(exist_ok=True)

    def tell(fact: dict[str, Any]) -> None:
        if fact["kind"] == "saved" and fact["step"] == step:
            raise StoppedError

    run = SmallRun(folder, tell)
    with pytest.raises(StoppedError):
        asyncio.run(run.to_the_end())
    run.rest()
    (folder / "metrics.jsonl").write_text(f'{{"step":{step}}}\n{{"step":')
    return folder


def to_the_end(folder: Path) -> list[int]:
    return asyncio.run(SmallRun(folder, lambda fact: None).to_the_end())


def put(store: ObjectStore, run: Path, *, token: str = OURS, keep: int = 2) -> dict[str, Any]:
    return upload(store, Upload(store.address, str(run), token, keep, None))


def brought(store: ObjectStore, folder: Path, *, queue: bool = True, start: bool = False) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    return fetch(store, Fetch(store.address, str(folder), queue=queue, start=start))


def owner(token: str) -> Owner:
    return Owner(run_id="r", name="n", created_ns=1, folder="/x", incarnation=0, token=token, config="")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Folders of one run, as it was after its checkpoints of steps 2 and 4."""
    folder = tmp_path_factory.mktemp("runs")
    early = run_until(folder / "run", 2)
    shutil.copytree(early, folder / "at-2")
    run_until(early, 4)
    return {2: folder / "at-2", 4: early}


@pytest.mark.parametrize("step", [2, 4])
def test_a_run_goes_on_from_its_second_place_alone(runs: dict[int, Path], tmp_path: Path, step: int) -> None:
    store = memory_store()
    told = put(store, runs[step])
    assert told["step"] == step
    assert told["bytes"] > 0
    assert brought(store, tmp_path / "new") == {"step": step, "skipped": [], "aside": ""}
    found = find_newest(tmp_path / "new" / "checkpoints").newest
    assert found is not None
    assert found.version.step == step
    assert (tmp_path / "new" / "metrics.jsonl").read_text() == f'{{"step":{step}}}\n'
    assert not (tmp_path / "new" / STAGING).exists()
    assert to_the_end(tmp_path / "new") == [1] * GROUPS


def test_what_is_stored_already_is_not_stored_again(runs: dict[int, Path]) -> None:
    store = memory_store()
    put(store, runs[2])
    before = store.list("")
    assert put(store, runs[2]) == {"step": 2, "bytes": 0}
    assert store.list("") == before


def calls_of_an_upload(runs: dict[int, Path]) -> int:
    store = memory_store()
    put(store, runs[2])
    counting = DyingStore(store)
    put(counting, runs[4])
    return counting.calls


@pytest.mark.parametrize("how", ["before", "after", "half"])
def test_an_upload_may_die_at_any_call_and_a_whole_checkpoint_is_found(
    runs: dict[int, Path], tmp_path: Path, how: How
) -> None:
    for at in range(calls_of_an_upload(runs)):
        store = memory_store()
        put(store, runs[2])
        with pytest.raises(DiedError):
            put(DyingStore(store, at, how), runs[4])
        folder = tmp_path / f"{at}"
        step = brought(store, folder)["step"]
        assert step in (2, 4), at
        found = find_newest(folder / "checkpoints").newest
        assert found is not None
        assert (found.version.step, find_newest(folder / "checkpoints").skipped) == (step, ())
        # The next upload of the same machine brings it up to date.
        assert put(store, runs[4])["step"] == 4
        assert brought(store, tmp_path / f"{at}-later")["step"] == 4


def test_a_fetch_may_die_at_any_call_and_the_next_one_makes_the_same_folder(
    runs: dict[int, Path], tmp_path: Path
) -> None:
    store = memory_store()
    put(store, runs[4])
    counting = DyingStore(store)
    brought(counting, tmp_path / "counted")
    for at in range(counting.calls):
        with pytest.raises(DiedError):
            brought(DyingStore(store, at), tmp_path / "new")
        assert not (tmp_path / "new" / "checkpoints").exists()
    assert brought(store, tmp_path / "new")["step"] == 4
    assert to_the_end(tmp_path / "new") == [1] * GROUPS


def test_a_damaged_one_is_passed_over_for_the_one_before(runs: dict[int, Path], tmp_path: Path) -> None:
    store = memory_store()
    put(store, runs[2])
    put(store, runs[4])
    newest = VersionSets(store).search().sets[0]
    key = next(key for key in keys_of(newest) if key.endswith("queue.msgpack"))
    store.put(key, [b"other bytes"])
    told = brought(store, tmp_path / "new")
    assert told["step"] == 2
    assert "queue.msgpack" in told["skipped"][0]
    assert to_the_end(tmp_path / "new") == [1] * GROUPS


def test_a_folder_that_is_as_new_stays_as_it_is(runs: dict[int, Path], tmp_path: Path) -> None:
    store = memory_store()
    put(store, runs[2])
    shutil.copytree(runs[4], tmp_path / "run")
    before = sorted(path for path in (tmp_path / "run").rglob("*"))
    assert brought(store, tmp_path / "run") == {"step": None, "skipped": [], "aside": ""}
    assert sorted(path for path in (tmp_path / "run").rglob("*")) == before


def test_a_folder_that_is_older_goes_on_from_the_place_and_keeps_its_queue_aside(
    runs: dict[int, Path], tmp_path: Path
) -> None:
    store = memory_store()
    put(store, runs[4])
    shutil.copytree(runs[2], tmp_path / "run")
    told = brought(store, tmp_path / "run")
    assert told["step"] == 4
    assert Path(told["aside"]) == tmp_path / "run" / "queue.before-1"
    assert (Path(told["aside"]) / "ledger" / "000000.log").is_file()
    assert to_the_end(tmp_path / "run") == [1] * GROUPS


def test_a_folder_whose_checkpoints_alone_are_gone_keeps_its_own_queue(runs: dict[int, Path], tmp_path: Path) -> None:
    store = memory_store()
    put(store, runs[4])
    shutil.copytree(runs[4], tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    assert brought(store, tmp_path / "run", queue=False) == {"step": 4, "skipped": [], "aside": ""}
    assert to_the_end(tmp_path / "run") == [1] * GROUPS


def test_a_checkpoint_here_that_is_damaged_is_not_put(runs: dict[int, Path], tmp_path: Path) -> None:
    store = memory_store()
    shutil.copytree(runs[4], tmp_path / "run")
    (path,) = (tmp_path / "run" / "checkpoints").glob("*/tensors_*.safetensors")
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with pytest.raises(DataError, match="it is damaged"):
        put(store, tmp_path / "run")
    assert VersionSets(store).search().sets == []


def test_a_launch_that_was_replaced_puts_nothing(runs: dict[int, Path]) -> None:
    store = memory_store()
    claim(store, owner(OURS))
    put(store, runs[2])
    claim(store, owner("theirs"))
    with pytest.raises(FencedError, match="was taken over by launch 0 of run r"):
        put(store, runs[4])
    assert [version_of(one).step for one in VersionSets(store).search().sets] == [2]


def test_the_weights_after_the_warm_up_are_put_once_and_come_along(runs: dict[int, Path], tmp_path: Path) -> None:
    store = memory_store()
    shutil.copytree(runs[2], tmp_path / "run")
    (tmp_path / "run" / "start").mkdir()
    (tmp_path / "run" / "start" / "model.safetensors").write_bytes(os.urandom(1000))
    put(store, tmp_path / "run")
    starts = [key for key in store.list("") if key.startswith("start-")]
    put(store, tmp_path / "run")
    assert [key for key in store.list("") if key.startswith("start-")] == starts
    brought(store, tmp_path / "new", start=True)
    copied = (tmp_path / "new" / "start" / "model.safetensors").read_bytes()
    assert copied == (tmp_path / "run" / "start" / "model.safetensors").read_bytes()


def test_without_the_weights_after_the_warm_up_a_run_that_needs_them_does_not_begin(
    runs: dict[int, Path], tmp_path: Path
) -> None:
    store = memory_store()
    put(store, runs[2])
    with pytest.raises(DataError, match="the weights after the warm-up"):
        brought(store, tmp_path / "new", start=True)
    assert not (tmp_path / "new" / "checkpoints").exists()
