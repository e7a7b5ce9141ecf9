"""Versions through a folder that all nodes see: whole files, ours alone, gone in the end."""

import asyncio
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.kernels import NEEDS_KERNELS
from support.weights.delta_versions import RUN
from support.weights.published_versions import KEY, Published, publish_steps, wrong_copies

from streamrl.errors import DataError, ResourceError
from streamrl.services.weights.endpoints import RunNode
from streamrl.services.weights.shared_folder import FolderSender, FolderTransport
from streamrl.types import Version
from streamrl.weights.manifest import encode
from streamrl.weights.transport.disk import DiskShelf, pieces
from streamrl.weights.transport.pulls import TransferStep, VersionPulls
from streamrl.weights.transport.shelf import Item

pytestmark = NEEDS_KERNELS

ANCHOR, DELTA = Item("anchor", Version(0, 1)), Item("delta", Version(0, 2))


@pytest.fixture
def made(tmp_path: Path) -> Published:
    return publish_steps(tmp_path / "published", steps=4)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_an_item_is_laid_out_once_readable_for_us_alone_and_read_as_it_was(made: Published, tmp_path: Path) -> None:
    disk = DiskShelf(made.shelf, tmp_path / "shared")
    for item in (ANCHOR, DELTA):
        path = disk.lay_out(item)
        assert b"".join(pieces(path, str(item))) == made.shelf.content(item).tobytes()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert disk.lay_out(item) == path
    assert stat.S_IMODE((tmp_path / "shared").stat().st_mode) == 0o700
    assert names(tmp_path / "shared") == ["0.1.anchor", "0.2.delta"]
    disk.keep_only({DELTA})
    assert names(tmp_path / "shared") == ["0.2.delta"]
    disk.close()
    assert not (tmp_path / "shared").exists()


def test_what_cannot_be_written_whole_is_not_there(made: Published, tmp_path: Path) -> None:
    disk = DiskShelf(made.shelf, tmp_path / "shared")
    limited = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000)); exec(sys.argv[1])"
    program = (
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from pathlib import Path\n"
        "from streamrl.errors import StreamRLError\n"
        "from streamrl.types import Version\n"
        "from streamrl.weights.transport.disk import DiskShelf\n"
        "from streamrl.weights.transport.shelf import Item, VersionShelf\n"
        f"shelf = VersionShelf({RUN!r}, {KEY!r}, Path({str(made.folder)!r}))\n"
        f"disk = DiskShelf(shelf, Path({str(tmp_path / 'shared')!r}))\n"
        "try:\n"
        "    disk.lay_out(Item('anchor', Version(0, 1)))\n"
        "except StreamRLError as error:\n"
        "    print(type(error).__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", limited, program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("ComponentError", "ResourceError")
    assert names(tmp_path / "shared") == []
    disk.close()


def test_a_folder_of_someone_else_or_without_a_parent_is_refused(made: Published, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    for folder in (tmp_path / "open", tmp_path / "none" / "own"):
        with pytest.raises(ResourceError, match=str(folder)):
            DiskShelf(made.shelf, folder)


def test_a_file_that_is_gone_is_named_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"version 0\.1: .*cannot be read: No such file.* the same on every node\?"):
        list(pieces(tmp_path / "gone", str(ANCHOR)))


class Actor:
    """In the place of the actor of the run's node: its calls are coroutines."""

    def __init__(self, **methods: Any) -> None:
        self._methods = methods

    def __getattr__(self, name: str) -> Any:
        return Actor(remote=self._methods[name]) if name != "remote" else self._methods["remote"]


def damage(path: str) -> None:
    Path(path).write_bytes(Path(path).read_bytes()[:-1] + b"?")


async def test_a_node_takes_versions_through_the_folder_and_a_damaged_file_costs_it_an_anchor(
    made: Published, tmp_path: Path
) -> None:
    sender = FolderSender(made.shelf, tmp_path / "shared")

    async def plan(manifest: bytes, have: Version | None) -> list[TransferStep]:
        return made.shelf.plan(manifest, have)

    async def give(node: str, kind: Any, version: Version, told: None) -> str:
        return await sender.give(node, Item(kind, version), told)

    actor: Any = Actor(plan=plan, give=give)
    home = RunNode(actor, "b", 60.0)
    pulls = VersionPulls(RUN, KEY, tmp_path / "copies", home.plan, FolderTransport(home))
    for step in (1, 3):
        manifest = made.versions[Version(0, step)]
        await pulls.fetch(manifest, encode(manifest))
    damage(await give("another", "delta", Version(0, 4), None))
    await pulls.fetch(made.newest, encode(made.newest))
    assert (pulls.figures.anchors, pulls.figures.deltas, pulls.figures.failed_ways) == (2, 2, 1)
    assert wrong_copies(tmp_path / "copies", made) == []
    assert names(tmp_path / "shared") == ["0.1.anchor", "0.2.delta", "0.3.delta", "0.4.anchor", "0.4.delta"]
    sender.keep_only(made.shelf.still_there([Version(0, 4)]))
    assert names(tmp_path / "shared") == ["0.2.delta", "0.3.delta", "0.4.anchor", "0.4.delta"]
    await pulls.close()
    await sender.close()
    assert not await asyncio.to_thread((tmp_path / "shared").exists)


async def test_what_a_node_could_not_use_is_laid_out_anew(made: Published, tmp_path: Path) -> None:
    sender = FolderSender(made.shelf, tmp_path / "shared")
    path = await sender.give("a", ANCHOR, None)
    damage(path)
    assert await sender.give("b", ANCHOR, None) == path
    assert b"".join(pieces(Path(path), "it")) != made.shelf.content(ANCHOR).tobytes()
    assert await sender.give("a", ANCHOR, None) == path
    assert b"".join(pieces(Path(path), "it")) == made.shelf.content(ANCHOR).tobytes()
    await sender.close()


def test_the_folder_goes_away_with_a_process_that_is_killed(made: Published, tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from streamrl.services.weights.shared_folder import FolderSender\n"
        "from streamrl.weights.transport.shelf import VersionShelf\n"
        "made = FolderSender(VersionShelf('run', b'', Path(sys.argv[1])), Path(sys.argv[2]))\n"
        "print(made._cleaner.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", program, str(made.folder), str(tmp_path / "shared")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        cleaner = psutil.Process(int(process.stdout.readline()))
        assert (tmp_path / "shared").exists()
        process.kill()
    psutil.wait_procs([cleaner], timeout=60)
    assert not (tmp_path / "shared").exists()
