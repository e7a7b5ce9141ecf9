"""Rows brought from other nodes: once each, checked, and named when they are lost; the owner is a plain object here."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import ray
from support.queue.run_files import completions, write_far_segment

from streamrl.buffers.segments.copies import SegmentCopies, read_head, read_range
from streamrl.buffers.segments.fetch_plan import FetchPlan
from streamrl.buffers.segments.reader import SegmentReader
from streamrl.errors import ConfigError, DataError
from streamrl.services.queue.segments import Segments
from streamrl.services.run.folder import RunFolder
from streamrl.services.weights.node_folder import NODE_RUNS, Visit, enter, id_here

NODE = "0123456789ab"


class Call:
    """In the place of a Ray method: answers in a turn of the event loop of its own, or with an error."""

    def __init__(self, owner: "Owner", answer: Any) -> None:
        self._owner, self._answer = owner, answer

    async def remote(self, *args: Any) -> Any:
        self._owner.calls[self._answer.__name__] += 1
        await asyncio.sleep(0)
        if self._owner.gone:
            raise ray.exceptions.ActorUnschedulableError("its node is gone")
        return self._answer(self._owner.folder, *args)


class Owner:
    """A node with a segment of four frames."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.gone, self.calls = folder, False, Counter()
        self.refs = write_far_segment(folder, NODE)
        self.read_head, self.read_range = Call(self, read_head), Call(self, read_range)


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    return Owner(tmp_path / "far")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


def segments(here: Path, owner: Owner | None, bound: int = 2**30) -> Segments:
    async def find(node: str) -> Any:
        assert node == NODE
        return owner

    return Segments(here, FetchPlan(bound), find)


async def test_readers_that_ask_at_once_share_one_transfer_and_read_what_was_written(owner: Owner, here: Path) -> None:
    brought = segments(here, owner)
    asked = await asyncio.gather(*(brought.bring(name, owner.refs) for name in ("learner", "reward", "other")))
    assert asked == [[], [], []]
    assert owner.calls == {"read_head": 1, "read_range": 1}
    reader = SegmentReader(here)
    assert all(reader.read(ref).equals(completions(first=place)) for place, ref in enumerate(owner.refs))
    assert await brought.bring("learner", owner.refs) == []
    assert owner.calls["read_range"] == 1
    sizes = sum(ref.length for ref in owner.refs)
    assert brought.figures() == {"frames": 4, "rows": 12, "bytes": sizes, "bytes_kept": sizes}


async def test_frames_of_a_node_that_is_gone_are_lost_but_for_those_that_are_here(owner: Owner, here: Path) -> None:
    brought = segments(here, owner)
    assert await brought.bring("reward", owner.refs[:2]) == []
    owner.gone = True
    assert await brought.bring("learner", owner.refs) == owner.refs[2:]
    assert await segments(here, None).bring("learner", owner.refs) == owner.refs[2:]


async def test_what_an_earlier_process_brought_is_not_fetched_again(owner: Owner, here: Path) -> None:
    await segments(here, owner).bring("reward", owner.refs[1:3])
    owner.calls.clear()
    again = segments(here, owner)
    assert await again.bring("reward", owner.refs[1:3]) == []
    assert owner.calls == {}
    assert again.figures()["bytes_kept"] > 0


async def test_damage_at_the_owner_is_an_error_and_no_loss(owner: Owner, here: Path) -> None:
    path = owner.folder / owner.refs[2].path
    data = bytearray(path.read_bytes())
    data[owner.refs[2].offset + 99] ^= 4
    path.write_bytes(data)
    with pytest.raises(DataError, match=f"offset {owner.refs[2].offset}"):
        await segments(here, owner).bring("reward", owner.refs)
    # What lies before it can be had by itself.
    assert await segments(here, owner).bring("reward", owner.refs[:2]) == []


async def test_copies_that_nobody_holds_go_when_there_are_too_many(owner: Owner, here: Path) -> None:
    brought, reader = segments(here, owner, bound=1), SegmentReader(here)
    await brought.bring("reward", owner.refs[3:])
    assert reader.read(owner.refs[3]).equals(completions(first=3))
    reader.forget_copies()
    await brought.bring("reward", [])
    assert list(SegmentCopies(here).there()) == []
    # Another file of the same name now: what was mapped of the first one must not be looked at.
    assert await brought.bring("reward", owner.refs[:1]) == []
    assert reader.read(owner.refs[0]).equals(completions(first=0))


def test_a_node_has_a_folder_of_its_own_for_a_run_and_keeps_its_id(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    run = RunFolder.create(tmp_path / "run", "run")
    visit = Visit(run.record, run.key())
    places = {}
    for name in ("one", "two"):
        environment = {NODE_RUNS: str(tmp_path / name)}
        assert id_here(run.run_id, environment) is None
        places[name], node = enter(visit, environment)
        assert (id_here(run.run_id, environment), enter(visit, environment)[1]) == (node, node)
        assert (places[name].run_id, places[name].key()) == (run.run_id, run.key())
        assert places[name].key_path.stat().st_mode & 0o777 == 0o600
    assert places["one"].path != places["two"].path


def test_a_node_that_does_not_say_where_runs_lie_is_told_how(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    run = RunFolder.create(tmp_path / "run", "run")
    with pytest.raises(ConfigError, match=f"start Ray there with {NODE_RUNS}="):
        enter(Visit(run.record, run.key()), {})
