"""A Ray that does not come up: what its processes said, and what it lacks."""

import resource
from pathlib import Path

import msgspec
import pytest

from streamrl.services.launch.ray_failure import (
    LINES,
    TAIL_BYTES,
    Surroundings,
    explain,
    last_words,
    likely_causes,
    read_surroundings,
)

ENOUGH = Surroundings(
    memory_bytes=2**33,
    shared_memory_bytes=2**30,
    folder_bytes=2**33,
    open_files=1024,
    file_bytes=2**40,
    address_bytes=2**63 - 1,
    processes=4096,
    loopback="",
)
FOLDER = Path("/tmp/srl-1")


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"memory_bytes": 2**28}, "of memory are free"),
        ({"shared_memory_bytes": None}, "there is no /dev/shm"),
        ({"shared_memory_bytes": 2**20}, "ray.object_store_bytes wants"),
        ({"folder_bytes": 2**20}, "/tmp/srl-1 has"),
        ({"open_files": 64}, "64 files (ulimit -n)"),
        ({"file_bytes": 2**20}, "files of 1.0 MiB (ulimit -f)"),
        ({"address_bytes": 2**30}, "may map 1.0 GiB (ulimit -v)"),
        ({"processes": 100}, "100 processes and threads (ulimit -u)"),
        ({"loopback": "Network is unreachable"}, "127.0.0.1 does not answer (Network is unreachable)"),
    ],
)
def test_what_is_short_is_named_and_nothing_else(changed: dict, told: str) -> None:
    (cause,) = likely_causes(msgspec.structs.replace(ENOUGH, **changed), 2**26, FOLDER)
    assert told in cause


def test_where_nothing_is_short_that_is_said() -> None:
    assert likely_causes(ENOUGH, 2**26, FOLDER) == []
    assert explain(RuntimeError("no\nmore"), [], []) == (
        "a local Ray did not start: no\nnothing that Ray needs is short here"
    )
    assert explain(RuntimeError(), ["raylet.err: bad"], ["a", "b"]) == (
        "a local Ray did not start: RuntimeError\nits processes said:\n  raylet.err: bad\nlikely, since a; b"
    )


def test_the_last_telling_lines_of_each_log_are_told(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "gcs_server.out").write_text("x" * 2 * TAIL_BYTES + "\n" + "".join(f"[date E 1] {i}\n" for i in range(9)))
    (logs / "raylet.out").write_text("[date I 1] well\n[date E 1] 8\n")
    (logs / "raylet.err").write_bytes(b"\xff odd\n\n")
    words = last_words(tmp_path)
    assert words[0] == "raylet.err: \ufffd odd"
    assert words[1:] == [f"gcs_server.out: [date E 1] {i}" for i in range(9 - LINES, 9)]
    assert last_words(tmp_path / "none") == []


def test_what_is_read_is_of_the_folder_and_of_this_process(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**30, before[1]))
    try:
        found = read_surroundings(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert found.file_bytes == 2**30
    assert found.open_files == resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert found.folder_bytes > 0
