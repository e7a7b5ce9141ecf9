"""A folder of files under an address: whole by its commit object, ours by its mark."""

from pathlib import Path
from uuid import uuid4

import pytest

from streamrl.errors import ConfigError
from streamrl.storage.object_set import read_set
from streamrl.storage.open import open_store
from streamrl.storage.published_folder import MARK, PublishedFolder
from streamrl.storage.store import read


def folder_with(path: Path, **files: str) -> Path:
    path.mkdir()
    for name, text in {**files, "streamrl": "{}"}.items():
        (path / f"{name}.json").write_text(text)
    return path


@pytest.fixture
def parent() -> str:
    return f"memory://{uuid4().hex}"


def test_all_files_are_there_under_the_address_and_the_commit_object_beside_it(tmp_path: Path, parent: str) -> None:
    published = PublishedFolder(f"{parent}/model")
    published.require_ours()
    published.put(folder_with(tmp_path / "a", config="1"), {"step": 3})
    store = open_store(parent)
    assert read(store, "model/config.json") == b"1"
    assert read_set(store, "model").facts == {"step": 3}
    assert {one.name for one in read_set(store, "model").objects} == {"config.json", MARK}


def test_an_earlier_one_is_replaced_with_all_its_files(tmp_path: Path, parent: str) -> None:
    published = PublishedFolder(f"{parent}/model")
    published.put(folder_with(tmp_path / "a", config="1", old="x"), {})
    published.put(folder_with(tmp_path / "b", config="2"), {})
    assert sorted(open_store(parent).list("")) == ["model.commit", "model/config.json", f"model/{MARK}"]
    assert read(open_store(parent), "model/config.json") == b"2"


def test_one_that_was_not_finished_is_ours_and_is_replaced(tmp_path: Path, parent: str) -> None:
    published = PublishedFolder(f"{parent}/model")
    published.put(folder_with(tmp_path / "a", config="1"), {})
    open_store(parent).remove(["model.commit"])
    published.put(folder_with(tmp_path / "b", config="2"), {})
    assert read(open_store(parent), "model/config.json") == b"2"


def test_objects_of_somebody_else_are_refused_and_stay(tmp_path: Path, parent: str) -> None:
    store = open_store(parent)
    store.put("model/theirs", [b"theirs"])
    with pytest.raises(ConfigError, match="was not written by streamrl"):
        PublishedFolder(f"{parent}/model").put(folder_with(tmp_path / "a"), {})
    assert store.list("") == {"model/theirs": 6}


@pytest.mark.parametrize("address", ["s3://bucket", "s3://bucket/"])
def test_a_whole_bucket_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="is a whole bucket"):
        PublishedFolder(address)
