"""What s3fs does with our objects: put, read, sets, retention, parts of large objects, and what it refuses."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from streamrl.errors import ConfigError, DeadlineError
from streamrl.services.storage.ask import ask
from streamrl.services.storage.orders import Probe
from streamrl.storage import fsspec_store
from streamrl.storage.object_set import put_set
from streamrl.storage.open import open_store
from streamrl.storage.published_folder import PublishedFolder
from streamrl.storage.store import MissingObjectError, read
from streamrl.storage.version_sets import VersionSets, version_of
from streamrl.types import Version

PART = 5 * 2**20
LARGE = bytes(range(256)) * (13 * 2**12)
"""13 MiB: three parts."""


def test_objects_are_put_listed_read_and_removed(bucket: str) -> None:
    store = open_store(f"s3://{bucket}/prefix")
    assert store.list("") == {}
    assert store.size("a/b") is None
    with pytest.raises(MissingObjectError):
        read(store, "a/b")
    store.put("a/b", [b"one", b" two"])
    store.put("a/b", [b"new"])
    store.put("empty", [])
    assert store.list("") == {"a/b": 3, "empty": 0}
    assert store.list("a/") == {"a/b": 3}
    assert (read(store, "a/b"), read(store, "empty"), store.size("a/b")) == (b"new", b"", 3)
    assert open_store(f"s3://{bucket}").list("") == {"prefix/a/b": 3, "prefix/empty": 0}
    store.remove(["a/b", "empty", "none"])
    assert store.list("") == {}


def test_a_large_object_goes_up_in_parts_and_one_that_fails_leaves_none(
    bucket: str, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fsspec_store, "PART_BYTES", PART)
    store = open_store(f"s3://{bucket}/prefix")
    client = boto3.client("s3", endpoint_url=server)
    store.put("large", [LARGE[:PART], LARGE[PART:]])
    assert read(store, "large") == LARGE

    def failing() -> Iterator[bytes]:
        yield LARGE
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.put("torn", failing())
    assert store.size("torn") is None
    assert "Uploads" not in client.list_multipart_uploads(Bucket=bucket)


def test_a_process_that_is_killed_between_two_parts_leaves_no_object(bucket: str, server: str) -> None:
    program = (
        "import os, sys\n"
        "from streamrl.storage import fsspec_store\n"
        "from streamrl.storage.open import open_store\n"
        f"fsspec_store.PART_BYTES = {PART}\n"
        "def pieces():\n"
        f"    yield bytes({2 * PART + 1})\n"
        "    os.kill(os.getpid(), 9)\n"
        "open_store(sys.argv[1]).put('torn', pieces())\n"
    )
    ended = subprocess.run([sys.executable, "-P", "-c", program, f"s3://{bucket}/prefix"], timeout=60)
    assert ended.returncode == -9
    assert len(boto3.client("s3", endpoint_url=server).list_multipart_uploads(Bucket=bucket)["Uploads"]) == 1
    assert open_store(f"s3://{bucket}/prefix").list("") == {}


def test_versions_are_kept_by_count_and_the_newest_whole_one_is_found(bucket: str, tmp_path: Path) -> None:
    store = open_store(f"s3://{bucket}/runs/one")
    sets = VersionSets(store)
    for step in (1, 2, 3):
        sets.add(Version(0, step), {"a": bytes([step]) * 100, "b/c": b"x"}, {}, keep=2)
    assert [version_of(one).step for one in sets.search().sets] == [3, 2]
    newest = sets.search().sets[0]
    store.put(f"{newest.name}/a", [b"torn"])
    fetched = sets.fetch_newest(tmp_path)
    assert fetched.newest is not None
    assert version_of(fetched.newest).step == 2
    assert (tmp_path / fetched.newest.name / "a").read_bytes() == bytes([2]) * 100
    assert len(fetched.skipped) == 1


def test_a_set_without_objects_and_a_published_folder(bucket: str, tmp_path: Path) -> None:
    put_set(open_store(f"s3://{bucket}"), "one", {}, {"x": 1})
    (tmp_path / "streamrl.json").write_text("{}")
    (tmp_path / "config.json").write_text("1")
    published = PublishedFolder(f"s3://{bucket}/models/mine")
    published.require_ours()
    published.put(tmp_path, {})
    assert read(open_store(f"s3://{bucket}/models"), "mine/config.json") == b"1"
    published.require_ours()


def test_a_bucket_that_does_not_exist_is_a_mistake_of_the_configuration() -> None:
    with pytest.raises(ConfigError, match="there is no such bucket"):
        ask(Probe("s3://there-is-no-such-bucket-here/x"), 60)


@pytest.mark.usefixtures("denying")
def test_a_bucket_without_rights_is_a_mistake_of_the_configuration_and_no_secret_is_told() -> None:
    with pytest.raises(ConfigError, match="the store does not let us in") as told:
        ask(Probe("s3://bucket/x"), 60)
    assert "secret-of-the-tests" not in str(told.value)
    assert "key-of-the-tests" not in str(told.value)


def test_without_credentials_it_is_one_too(bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(ConfigError, match="the store does not let us in"):
        ask(Probe(f"s3://{bucket}/x"), 60)


def test_a_store_that_never_answers_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(DeadlineError, match="is the store reachable from here"):
            ask(Probe("s3://bucket/x"), 5)
