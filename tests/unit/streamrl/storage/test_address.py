"""Addresses: what each form means, and what is wrong with the others."""

from pathlib import Path

import pytest

from streamrl.storage.address import fault_of, has_scheme, join, local_path, scheme_of


@pytest.mark.parametrize(
    "address",
    [
        *("/data/runs", "runs", "file:///data/runs", "memory://x", "abfs://container@account.dfs.core.windows.net/x"),
        *("s3://bucket", "s3://bucket/a/b", "S3://Bucket/x", "gs://bucket/x", "az://container/x"),
    ],
)
def test_an_address_of_a_place_has_no_fault(address: str) -> None:
    assert fault_of(address) == ""


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("", "an empty address"),
        ("s3://", "names no bucket; write s3://BUCKET/PREFIX"),
        ("s3:///x", "names no bucket"),
        ("file://x", "write file:///folder"),
        ("s3://key:secret@bucket/x", "credentials in an address"),
        ("https://user:word@host/x", "credentials in an address"),
        ("az://c/x?sig=abc", "options behind ? or #"),
        ("simplecache::s3://bucket", "a chain of file systems"),
        ("s3://bucket/../other", "a way up"),
        ("://bucket", "begins with no scheme"),
    ],
)
def test_what_is_wrong_with_an_address_is_told_with_the_way_out(address: str, words: str) -> None:
    assert words in fault_of(address)


@pytest.mark.parametrize("address", ["s3://key:secret@bucket/x", "az://c/x?sig=secret"])
def test_a_secret_in_an_address_is_not_told(address: str) -> None:
    assert "secret" not in fault_of(address).replace("the environment", "")


def test_a_path_and_a_file_address_are_folders_of_this_machine_and_others_are_not() -> None:
    assert local_path("/data") == local_path("file:///data") == Path("/data")
    assert local_path("~/x") == Path("~/x").expanduser()
    assert local_path("s3://bucket/x") is None
    assert not has_scheme("/data")
    assert has_scheme("s3://bucket")
    assert scheme_of("S3://bucket") == "s3"


def test_names_are_joined_with_one_slash_each() -> None:
    assert join("s3://bucket/", "a", "b") == "s3://bucket/a/b"
    assert join("s3://bucket", "a") == "s3://bucket/a"
    assert join("memory://", "a") == "memory://a"
    assert join("/data/", "a") == "/data/a"
