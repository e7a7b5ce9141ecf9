"""What every store does: whole objects by key."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.storage.stores import memory_store

from streamrl.errors import ComponentError, ConfigError
from streamrl.storage.folder_store import FolderStore
from streamrl.storage.open import open_store
from streamrl.storage.store import MissingObjectError, ObjectStore, read


@pytest.fixture(params=["memory", "folder", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "memory":
        return memory_store()
    return open_store(str(tmp_path / "store") if request.param == "folder" else f"file://{tmp_path}/store")


def test_an_object_is_read_as_it_was_put_and_put_again_it_is_the_new_one(store: ObjectStore) -> None:
    store.put("a/b", [b"one", memoryview(b" two"), bytearray(b" three")])
    assert read(store, "a/b") == b"one two three"
    assert store.size("a/b") == 13
    store.put("a/b", [b"other"])
    assert read(store, "a/b") == b"other"
    store.put("empty", [])
    assert (read(store, "empty"), store.size("empty")) == (b"", 0)


def test_a_listing_has_the_sizes_of_all_objects_below_a_prefix(store: ObjectStore) -> None:
    assert store.list("") == {}
    for key in ("a/b/c", "a/d", "ab"):
        store.put(key, [key.encode()])
    assert store.list("") == {"a/b/c": 5, "a/d": 3, "ab": 2}
    assert store.list("a/") == {"a/b/c": 5, "a/d": 3}
    assert store.list("none/") == {}


def test_what_is_removed_is_gone_and_what_is_not_there_is_passed_over(store: ObjectStore) -> None:
    store.put("a/b", [b"x"])
    store.remove(["a/b", "a/none", "none/at/all"])
    assert store.list("") == {}
    assert store.size("a/b") is None
    with pytest.raises(MissingObjectError, match="a/b"):
        read(store, "a/b")


def test_what_the_pieces_raise_is_raised_on(store: ObjectStore) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"half"
        raise ValueError("the reader failed")

    with pytest.raises((ValueError, ComponentError), match="the reader failed"):
        store.put("a", pieces())


def test_a_file_that_was_not_written_whole_is_not_there(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    store.put("a/b", [b"old"])

    def pieces() -> Iterator[bytes]:
        yield b"new"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.put("a/b", pieces())
    assert read(store, "a/b") == b"old"
    assert store.list("") == {"a/b": 3}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_in_which_nobody_may_write_is_a_mistake_of_the_configuration(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigError, match="give a folder in which this user may write"):
        FolderStore(tmp_path / "store").put("a", [b"x"])


def test_a_file_in_the_way_of_a_folder_is_a_mistake_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file")
    with pytest.raises(ConfigError, match="store"):
        FolderStore(tmp_path / "store").put("a/b", [b"x"])


def test_an_unknown_scheme_and_a_package_that_is_not_here_are_told_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ConfigError, match="knows no scheme 'nowhere'"):
        open_store("nowhere://bucket/x")
    monkeypatch.setitem(__import__("sys").modules, "gcsfs", None)
    with pytest.raises(ConfigError, match=r"pip install 'streamrl\[gcs\]'"):
        open_store("gs://bucket/x")
