"""Versions through an object store: whole objects under keys of their own, gone in the end."""

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.kernels import NEEDS_KERNELS
from support.storage.stores import memory_store
from support.weights.delta_versions import RUN
from support.weights.published_versions import KEY, Published, publish_steps, wrong_copies

from streamrl.errors import DataError
from streamrl.services.weights.endpoints import RunNode
from streamrl.services.weights.shared_store import StoreSender, StoreTransport
from streamrl.storage.store import ObjectStore
from streamrl.types import Version
from streamrl.weights.manifest import encode
from streamrl.weights.transport.pulls import TransferStep, VersionPulls
from streamrl.weights.transport.shelf import Item
from streamrl.weights.transport.stored import StoreShelf, stored_pieces

pytestmark = NEEDS_KERNELS

ANCHOR, DELTA = Item("anchor", Version(0, 1)), Item("delta", Version(0, 2))


@pytest.fixture
def made(tmp_path: Path) -> Published:
    return publish_steps(tmp_path / "published", steps=4)


@pytest.fixture
def store() -> ObjectStore:
    return memory_store()


def test_an_item_is_put_once_and_read_as_it_was(made: Published, store: ObjectStore) -> None:
    stored = StoreShelf(made.shelf, store, "mine")
    for item in (ANCHOR, DELTA):
        key = stored.lay_out(item)
        assert b"".join(stored_pieces(store, key, str(item))) == made.shelf.content(item).tobytes()
        assert stored.lay_out(item) == key
    assert len(store.list("mine/")) == 2
    stored.let_go({DELTA})
    stored.remove_old()
    assert list(store.list("")) == [stored.lay_out(DELTA)]
    stored.close()
    assert store.list("") == {}


def test_what_is_prepared_anew_has_a_key_of_its_own_and_the_old_one_is_removed_with_it(
    made: Published, store: ObjectStore
) -> None:
    stored = StoreShelf(made.shelf, store, "mine")
    first = stored.lay_out(ANCHOR)
    second = stored.lay_out(ANCHOR, again=True)
    assert first != second
    assert b"".join(stored_pieces(store, first, "it")) == b"".join(stored_pieces(store, second, "it"))
    stored.remove_old()
    assert list(store.list("")) == [second]


def test_what_is_gone_is_told(made: Published, store: ObjectStore) -> None:
    stored = StoreShelf(made.shelf, store, "mine")
    key = stored.lay_out(ANCHOR)
    stored.close()
    with pytest.raises(DataError, match="is not there"):
        list(stored_pieces(store, key, "version 0.1"))
    shutil.rmtree(made.folder)
    with pytest.raises(DataError):
        stored.lay_out(ANCHOR)


class Actor:
    """In the place of the actor of the run's node: its calls are coroutines."""

    def __init__(self, **methods: Any) -> None:
        self._methods = methods

    def __getattr__(self, name: str) -> Any:
        return Actor(remote=self._methods[name]) if name != "remote" else self._methods["remote"]


async def test_a_node_takes_versions_through_the_store_and_a_damaged_object_costs_it_an_anchor(
    made: Published, tmp_path: Path
) -> None:
    address = f"file://{tmp_path}/store"
    sender = StoreSender(made.shelf, address, "mine")

    async def plan(manifest: bytes, have: Version | None) -> list[TransferStep]:
        return made.shelf.plan(manifest, have)

    async def give(node: str, kind: Any, version: Version, told: None) -> str:
        return await sender.give(node, Item(kind, version), told)

    actor: Any = Actor(plan=plan, give=give)
    home = RunNode(actor, "b", 60.0)
    pulls = VersionPulls(RUN, KEY, tmp_path / "copies", home.plan, StoreTransport(home, address))
    for step in (1, 3):
        manifest = made.versions[Version(0, step)]
        await pulls.fetch(manifest, encode(manifest))
    damaged = tmp_path / "store" / await give("another", "delta", Version(0, 4), None)
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    await pulls.fetch(made.newest, encode(made.newest))
    assert (pulls.figures.anchors, pulls.figures.deltas, pulls.figures.failed_ways) == (2, 2, 1)
    assert wrong_copies(tmp_path / "copies", made) == []
    sender.keep_only([])
    await pulls.close()
    await sender.close()
    assert not await asyncio.to_thread((tmp_path / "store" / "mine").exists)


def test_what_was_put_goes_away_with_a_process_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "store" / "mine").mkdir(parents=True)
    (tmp_path / "store" / "mine" / "0-0.1.anchor").write_bytes(b"x")
    (tmp_path / "store" / "theirs").write_bytes(b"x")
    program = [
        sys.executable,
        "-P",
        "-m",
        "streamrl.services.weights.store_cleanup",
        f"file://{tmp_path}/store",
        "mine",
    ]
    cleaner = subprocess.Popen(program, stdin=subprocess.PIPE)
    cleaner.communicate()  # the end of its standard input, as the end of who started it
    assert cleaner.returncode == 0
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["theirs"]
