"""Versions under an address: the newest whole one is found, whenever who adds them dies, and the rest goes in order."""

import contextlib
import itertools
from pathlib import Path

import pytest
from support.storage.stores import DiedError, DyingStore, How, LaggingStore, memory_store

from streamrl.errors import ResourceError
from streamrl.storage.folder_store import FolderStore
from streamrl.storage.object_set import COMMIT, Source
from streamrl.storage.store import ObjectStore, read
from streamrl.storage.version_sets import VersionSets, version_of
from streamrl.types import Version

KEEP = 2
_COUNT = itertools.count()


def parts_of(step: int) -> dict[str, Source]:
    return {"a": bytes([step]) * 1000, "b/c": bytes([step]) * 10}


def add(
    store: ObjectStore, step: int, *, incarnation: int = 0, keep: int = KEEP, byte_budget: int | None = None
) -> None:
    VersionSets(store).add(Version(incarnation, step), parts_of(step), {}, keep=keep, byte_budget=byte_budget)


def newest(store: ObjectStore, folder: Path) -> int | None:
    """The step of the newest whole set, whose bytes are looked at."""
    place = folder / f"fetched-{next(_COUNT)}"
    place.mkdir()
    found = VersionSets(store).fetch_newest(place).newest
    if found is None:
        return None
    step = version_of(found).step
    assert (place / found.name / "a").read_bytes() == bytes([step]) * 1000
    assert (place / found.name / "b" / "c").read_bytes() == bytes([step]) * 10
    return step


def steps(store: ObjectStore) -> list[int]:
    return [version_of(one).step for one in VersionSets(store).search().sets]


@pytest.fixture(params=["memory", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return memory_store() if request.param == "memory" else FolderStore(tmp_path / "store")


def calls_of_an_add() -> int:
    store = memory_store()
    for step in (1, 2):
        add(store, step)
    counting = DyingStore(store)
    add(counting, 3)
    return counting.calls


@pytest.mark.parametrize("how", ["before", "after", "half"])
@pytest.mark.parametrize("at", range(calls_of_an_add()))
def test_whoever_adds_may_die_at_any_call_and_the_newest_whole_one_is_found(
    store: ObjectStore, tmp_path: Path, at: int, how: How
) -> None:
    for step in (1, 2):
        add(store, step)
    with pytest.raises(DiedError):
        add(DyingStore(store, at, how), 3)
    is_committed = any(name.startswith("step_000003") and name.endswith(COMMIT) for name in store.list(""))
    found = newest(store, tmp_path)
    assert found in ((2, 3) if is_committed else (2,))
    # Who comes after goes on, and nothing of what was left stays.
    add(store, 4)
    assert newest(store, tmp_path) == 4
    listed = store.list("")
    names = {key.partition("/")[0].removesuffix(COMMIT) for key in listed}
    assert all(f"{name}{COMMIT}" in listed for name in names)


@pytest.mark.parametrize("at", range(calls_of_an_add()))
def test_the_budget_is_kept_whenever_who_adds_dies(at: int) -> None:
    """Of two sets, where three would be kept by their number."""
    store, size = memory_store(), 200_000
    budget = 2 * (size + 2**16)
    for step in range(1, 6):
        dying = VersionSets(DyingStore(store, at if step > 1 else -1, "half"))
        with contextlib.suppress(DiedError):
            dying.add(Version(0, step), {"a": bytes(size)}, {}, keep=5, byte_budget=budget)
        assert sum(store.list("").values()) <= budget
        assert VersionSets(store).search().sets


def test_the_newest_are_kept_by_count(store: ObjectStore) -> None:
    for step in range(1, 6):
        add(store, step)
    assert steps(store) == [5, 4]


def test_older_ones_go_before_the_budget_is_passed_and_the_newest_whole_one_never() -> None:
    store = memory_store()
    for step in range(1, 5):
        add(store, step, keep=5)
    add(store, 5, keep=5, byte_budget=2**16 + 3200)
    assert steps(store) == [5, 4]
    with pytest.raises(ResourceError, match=r"do not fit checkpoint\.byte_budget"):
        add(store, 6, keep=5, byte_budget=2**16 + 1500)
    assert steps(store) == [5]


def test_a_damaged_one_is_passed_over_with_the_reason(store: ObjectStore, tmp_path: Path) -> None:
    for step in (1, 2):
        add(store, step)
    name = VersionSets(store).search().sets[0].name
    store.put(f"{name}/a", [bytes([2]) * 999 + b"x"])
    (tmp_path / "into").mkdir()
    fetched = VersionSets(store).fetch_newest(tmp_path / "into")
    assert fetched.newest is not None
    assert version_of(fetched.newest).step == 1
    assert [f"{name}/a" in line for line in fetched.skipped] == [True]
    assert [path.name for path in (tmp_path / "into").iterdir()] == [fetched.newest.name]


def test_a_commit_object_that_cannot_be_read_stays_and_is_told(tmp_path: Path) -> None:
    store = memory_store()
    add(store, 1)
    add(store, 2)
    name = VersionSets(store).search().sets[0].name
    store.put(f"{name}{COMMIT}", [read(store, f"{name}{COMMIT}")[:50]])
    add(store, 3)
    found = VersionSets(store).search()
    assert [version_of(one).step for one in found.sets] == [3, 1]
    assert list(found.unreadable) == [name]
    assert newest(store, tmp_path) == 3


def test_a_higher_incarnation_is_newer_at_a_lower_step(tmp_path: Path) -> None:
    store = memory_store()
    add(store, 9)
    add(store, 5, incarnation=1)
    assert newest(store, tmp_path) == 5


def test_nothing_older_than_what_is_there_is_fetched(tmp_path: Path) -> None:
    store = memory_store()
    add(store, 5)
    assert VersionSets(store).fetch_newest(tmp_path, above=Version(0, 5)).newest is None
    assert list(tmp_path.iterdir()) == []
    assert VersionSets(store).fetch_newest(tmp_path, above=Version(0, 4)).newest is not None


def test_a_listing_that_lags_costs_no_set(tmp_path: Path) -> None:
    """It shows the objects of a set, and not the commit object that came after them."""
    store = memory_store()
    add(store, 1)
    add(store, 2)
    lagging = LaggingStore(store)
    lagging.mark()
    lagging.unlist(lambda key: key.startswith("step_000002") and key.endswith(COMMIT))
    add(lagging, 3)
    assert newest(store, tmp_path) == 3
    assert 2 in steps(store)
