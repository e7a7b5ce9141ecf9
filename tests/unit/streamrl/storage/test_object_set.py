"""A set of objects: there as one, or not at all."""

import io
from pathlib import Path

import pytest
from support.storage.stores import memory_store

from streamrl.errors import DataError
from streamrl.storage.object_set import (
    COMMIT,
    fetch_set,
    keys_of,
    missing_objects,
    put_set,
    read_set,
    remove_set,
    set_names,
)
from streamrl.storage.store import MissingObjectError, ObjectStore, read

PARTS = {"a": b"first", "sub/b": b"second", "empty": b""}


@pytest.fixture
def store() -> ObjectStore:
    return memory_store()


def test_a_set_is_fetched_as_it_was_put(store: ObjectStore, tmp_path: Path) -> None:
    made = put_set(store, "one", {**PARTS, "file": io.BytesIO(b"third")}, {"step": 3})
    found = read_set(store, "one")
    assert found == made
    assert (found.num_bytes, found.facts) == (16, {"step": 3})
    fetch_set(store, found, tmp_path)
    fetched = {
        path.relative_to(tmp_path).as_posix(): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
    }
    assert fetched == {**PARTS, "file": b"third"}


def test_without_its_commit_object_there_is_no_set(store: ObjectStore) -> None:
    put_set(store, "one", PARTS, {})
    store.remove([f"one{COMMIT}"])
    with pytest.raises(MissingObjectError):
        read_set(store, "one")


@pytest.mark.parametrize("place", range(0, 60, 7))
def test_a_changed_byte_of_the_commit_object_is_noticed(store: ObjectStore, place: int) -> None:
    put_set(store, "one", PARTS, {})
    raw = bytearray(read(store, f"one{COMMIT}"))
    raw[place] ^= 1
    store.put(f"one{COMMIT}", [raw])
    with pytest.raises(DataError, match=r"one\.commit"):
        read_set(store, "one")


@pytest.mark.parametrize("length", [0, 1, 33, 80])
def test_a_commit_object_that_is_cut_is_no_set(store: ObjectStore, length: int) -> None:
    put_set(store, "one", PARTS, {})
    store.put(f"one{COMMIT}", [read(store, f"one{COMMIT}")[:length]])
    with pytest.raises(DataError, match="torn or damaged"):
        read_set(store, "one")


@pytest.mark.parametrize("content", [b"firsT", b"fir", b"first and more"])
def test_an_object_with_other_bytes_is_named_and_the_set_is_not_fetched(
    store: ObjectStore, tmp_path: Path, content: bytes
) -> None:
    made = put_set(store, "one", PARTS, {})
    store.put("one/a", [content])
    with pytest.raises(DataError, match="one/a"):
        fetch_set(store, made, tmp_path)
    assert missing_objects(store, made) == ([] if len(content) == 5 else ["a"])


def test_an_object_that_is_gone_is_named(store: ObjectStore, tmp_path: Path) -> None:
    made = put_set(store, "one", PARTS, {})
    store.remove(["one/sub/b"])
    assert missing_objects(store, made) == ["sub/b"]
    with pytest.raises(DataError, match="one/sub/b"):
        fetch_set(store, made, tmp_path)


def test_a_part_that_is_not_what_it_should_be_is_not_committed(store: ObjectStore) -> None:
    with pytest.raises(DataError, match="it is damaged"):
        put_set(store, "one", PARTS, {}, expected={"a": "0" * 32})
    with pytest.raises(MissingObjectError):
        read_set(store, "one")


def test_a_copy_of_a_commit_object_under_another_name_is_refused(store: ObjectStore) -> None:
    put_set(store, "one", PARTS, {})
    store.put(f"two{COMMIT}", [read(store, f"one{COMMIT}")])
    with pytest.raises(DataError, match="it was copied"):
        read_set(store, "two")


def test_names_that_lead_out_of_the_folder_are_refused(store: ObjectStore, tmp_path: Path) -> None:
    made = put_set(store, "one", {"../out": b"x"}, {})
    with pytest.raises(DataError, match="is no name of an object"):
        fetch_set(store, made, tmp_path / "in")
    assert not (tmp_path / "out").exists()


def test_a_set_that_is_removed_leaves_nothing(store: ObjectStore) -> None:
    made = put_set(store, "one", PARTS, {})
    put_set(store, "two", PARTS, {})
    remove_set(store, "one", keys_of(made))
    assert set_names(store.list("")) == ["two"]
    assert all(key.startswith("two") for key in store.list(""))
