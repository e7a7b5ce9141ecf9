"""What another node takes of the published versions: by the fewest bytes, and never anything that is not verified."""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.kernels import NEEDS_KERNELS
from support.weights.delta_versions import RUN
from support.weights.published_versions import KEY, Published, publish_steps, wrong_copies

from streamrl.errors import ComponentError, DataError, DeadlineError, ProcessDiedError, ResourceError
from streamrl.types import Version
from streamrl.weights.manifest import encode
from streamrl.weights.transport.pulls import TransferStep, VersionPulls
from streamrl.weights.transport.shelf import Item, VersionShelf

pytestmark = NEEDS_KERNELS

PIECE = 5000
SEEDS = 1000
LIMIT_S = 120


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    """Two incarnations of a learner: five versions of the first, three of the second."""
    folder = tmp_path_factory.mktemp("pulls") / "published"
    first = publish_steps(folder, steps=5)
    second = publish_steps(folder, steps=3, incarnation=1)
    return Published(folder, {**first.versions, **second.versions}, first.shelf)


def pieces_of(published: Published, step: TransferStep) -> list[bytes]:
    content = published.shelf.content(Item(step.kind, step.version)).tobytes()
    return [content[start : start + PIECE] for start in range(0, len(content), PIECE)]


class Wire:
    """Ways and bytes of what is published. `damage` decides what becomes of the pieces of a step, `before` is awaited
    before each piece."""

    def __init__(self, published: Published) -> None:
        self._published = published
        self.damage: Callable[[list[bytes]], list[bytes | BaseException]] = list
        self.bend: Callable[[list[TransferStep]], list[TransferStep]] = list
        self.ways: list[list[tuple[str, Version]]] = []
        self.on_piece: Callable[[], None] = lambda: None
        self.gate: asyncio.Event | None = None
        self.closed = False

    async def find(self, wanted: bytes, have: Version | None) -> list[TransferStep]:
        steps = self.bend(self._published.shelf.plan(wanted, have))
        self.ways.append([(step.kind, step.version) for step in steps])
        return steps

    async def receive(self, step: TransferStep) -> AsyncGenerator[bytes, None]:
        for piece in self.damage(pieces_of(self._published, step)):
            self.on_piece()
            if self.gate is not None:
                await self.gate.wait()
            if isinstance(piece, BaseException):
                raise piece
            yield piece

    async def close(self) -> None:
        self.closed = True


def pulls_of(wire: Wire, folder: Path) -> VersionPulls:
    return VersionPulls(RUN, KEY, folder, wire.find, wire)


async def fetch(pulls: VersionPulls, published: Published, version: Version) -> None:
    manifest = published.versions[version]
    async with asyncio.timeout(LIMIT_S):
        await pulls.fetch(manifest, encode(manifest))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def v(step: int, incarnation: int = 0) -> Version:
    return Version(incarnation, step)


async def test_who_comes_late_takes_an_anchor_and_then_the_deltas_that_it_missed(
    published: Published, tmp_path: Path
) -> None:
    wire = Wire(published)
    pulls = pulls_of(wire, tmp_path / "copies")
    await fetch(pulls, published, v(2))
    await fetch(pulls, published, v(5))
    assert wire.ways == [[("anchor", v(2))], [("delta", v(3)), ("delta", v(4)), ("delta", v(5))]]
    assert names(tmp_path / "copies") == ["0.2.weights", "0.5.weights"]
    assert wrong_copies(tmp_path / "copies", published) == []
    assert msgspec.to_builtins(pulls.figures) == {
        "anchors": 1,
        "deltas": 3,
        "bytes": published.versions[v(2)].total_bytes
        + sum(len(published.shelf.content(Item("delta", v(step)))) for step in (3, 4, 5)),
        "failed_ways": 0,
    }


async def test_another_incarnation_begins_with_an_anchor(published: Published, tmp_path: Path) -> None:
    wire = Wire(published)
    pulls = pulls_of(wire, tmp_path / "copies")
    for version in (v(4), v(2, 1), v(3, 1), v(5)):
        await fetch(pulls, published, version)
    assert wire.ways == [[("anchor", v(4))], [("anchor", v(2, 1))], [("delta", v(3, 1))], [("delta", v(5))]]


async def test_the_newest_copy_stays_for_the_next_delta_whatever_is_needed(
    published: Published, tmp_path: Path
) -> None:
    pulls = pulls_of(Wire(published), tmp_path / "copies")
    for step in (1, 2, 4):
        await fetch(pulls, published, v(step))
    pulls.keep_only([v(1)])
    assert names(tmp_path / "copies") == ["0.1.weights", "0.4.weights"]
    await pulls.close()
    assert not (tmp_path / "copies").exists()


async def test_a_version_is_pulled_once_however_many_ask_and_two_at_once_follow_each_other(
    published: Published, tmp_path: Path
) -> None:
    wire = Wire(published)
    wire.gate = asyncio.Event()
    pulls = pulls_of(wire, tmp_path / "copies")
    waiting = [asyncio.create_task(fetch(pulls, published, version)) for version in (v(3), v(3), v(5), v(4), v(3))]
    for _ in range(5):
        await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    wire.gate.set()
    await asyncio.gather(*waiting)
    assert wire.ways == [[("anchor", v(3))], [("delta", v(4)), ("delta", v(5))], [("delta", v(4))]]
    assert wrong_copies(tmp_path / "copies", published) == []


async def test_who_asks_for_a_version_that_only_passes_by_has_it_in_the_end(
    published: Published, tmp_path: Path
) -> None:
    wire = Wire(published)
    pulls = pulls_of(wire, tmp_path / "copies")
    await fetch(pulls, published, v(2))
    asked: list[asyncio.Task[None]] = []

    def ask() -> None:
        if not asked and "0.3.weights" in names(tmp_path / "copies"):
            asked.append(asyncio.create_task(fetch(pulls, published, v(3))))

    wire.on_piece = ask
    await fetch(pulls, published, v(5))
    await asked[0]
    assert names(tmp_path / "copies") == ["0.2.weights", "0.3.weights", "0.5.weights"]


async def test_what_a_pull_stands_on_is_kept_until_it_is_over(published: Published, tmp_path: Path) -> None:
    wire = Wire(published)
    pulls = pulls_of(wire, tmp_path / "copies")
    await fetch(pulls, published, v(2))
    await fetch(pulls, published, v(1, 1))
    wire.on_piece = lambda: pulls.keep_only([v(1, 1)])
    await fetch(pulls, published, v(4))
    assert wire.ways[2:] == [[("delta", v(3)), ("delta", v(4))]]
    pulls.keep_only([])
    assert names(tmp_path / "copies") == ["1.1.weights"]


def flipped(pieces: list[bytes]) -> list[bytes]:
    broken = bytearray(pieces[-1])
    broken[len(broken) // 3] ^= 4
    return [*pieces[:-1], bytes(broken)]


DAMAGE = {
    "flipped": flipped,
    "cut": lambda pieces: pieces[:-1],
    "doubled": lambda pieces: [pieces[0], *pieces],
    "died": lambda pieces: [*pieces[:-1], ProcessDiedError("the sender died")],
    "too slow": lambda pieces: [DeadlineError("took longer than 1 s")],
}


@pytest.mark.parametrize("kind", DAMAGE)
async def test_after_a_delta_that_is_wrong_or_does_not_come_the_version_is_taken_in_full_once(
    kind: str, published: Published, tmp_path: Path
) -> None:
    wire = Wire(published)
    pulls = pulls_of(wire, tmp_path / "copies")
    await fetch(pulls, published, v(3))
    damaged = iter([DAMAGE[kind], list])
    wire.damage = lambda pieces: next(damaged)(pieces)
    await fetch(pulls, published, v(4))
    assert wire.ways[1:] == [[("delta", v(4))], [("anchor", v(4))]]
    assert pulls.figures.failed_ways == 1
    assert wrong_copies(tmp_path / "copies", published) == []

    wire.damage = DAMAGE[kind]
    with pytest.raises((DataError, ComponentError)):
        await fetch(pulls, published, v(5))
    assert wire.ways[3:] == [[("delta", v(5))], [("anchor", v(5))]]
    assert names(tmp_path / "copies") == ["0.3.weights", "0.4.weights"]

    wire.damage = list
    await fetch(pulls, published, v(5))
    assert pulls.figures.deltas == 1


def with_number(step: TransferStep, num_bytes: int) -> TransferStep:
    return msgspec.structs.replace(step, num_bytes=num_bytes)


BENT: dict[str, Callable[[list[TransferStep]], list[TransferStep]]] = {
    "skips": lambda steps: steps[1:] if len(steps) > 1 else steps,
    "ends early": lambda steps: steps[:-1] if steps[0].kind == "delta" else steps,
    "lies": lambda steps: [with_number(step, 10**12) if step.kind == "delta" else step for step in steps],
}


@pytest.mark.parametrize("kind", BENT)
async def test_a_way_that_leads_nowhere_costs_an_anchor(kind: str, published: Published, tmp_path: Path) -> None:
    wire = Wire(published)
    pulls = pulls_of(wire, tmp_path / "copies")
    await fetch(pulls, published, v(1))
    wire.bend = BENT[kind]
    await fetch(pulls, published, v(3))
    assert wire.ways[-1] == [("anchor", v(3))]
    assert wrong_copies(tmp_path / "copies", published) == []


async def test_manifests_on_the_way_are_verified_too(published: Published, tmp_path: Path) -> None:
    wire = Wire(published)
    pulls = pulls_of(wire, tmp_path / "copies")
    await fetch(pulls, published, v(1))
    unsigned = encode(msgspec.structs.replace(published.versions[v(2)], signature="0" * 64))
    other = encode(published.versions[v(4)])
    for manifest in (unsigned, other, b"none"):
        wire.bend = lambda steps, manifest=manifest: [
            msgspec.structs.replace(step, manifest=manifest) if step.version == v(2) else step for step in steps
        ]
        await fetch(pulls, published, v(3))
        assert wire.ways[-2:] == [[("delta", v(2)), ("delta", v(3))], [("anchor", v(3))]]
        pulls.keep_only([])
        await fetch(pulls, published, v(1))  # the newest stays, so this one comes again
        pulls._keep([v(1)])
    with pytest.raises(DataError, match="signature"):
        await pulls.fetch(msgspec.structs.replace(published.newest, signature="0" * 64), b"")


async def test_no_room_is_not_tried_again(published: Published, tmp_path: Path) -> None:
    wire = Wire(published)
    wire.damage = lambda pieces: [ResourceError("full")]
    with pytest.raises(ResourceError):
        await fetch(pulls_of(wire, tmp_path / "copies"), published, v(1))
    assert len(wire.ways) == 1


# ---- R9


class Chaos:
    """One seed: what happens to the ways and pieces while `on`."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.on = True

    def damage(self, pieces: list[bytes]) -> list[bytes | BaseException]:
        bent: list[Any] = list(pieces)
        if not self.on or self._chance.random() < 0.4:
            return bent
        for _ in range(self._chance.choice([1, 1, 2, 4])):
            self._hurt(bent)
        return bent

    def _hurt(self, bent: list[Any]) -> None:
        at = self._chance.randrange(len(bent))
        kind = self._chance.randrange(7)
        if kind == 0 and isinstance(bent[at], bytes) and bent[at]:
            raw = bytearray(bent[at])
            raw[self._chance.randrange(len(raw))] ^= 1 << self._chance.randrange(8)
            bent[at] = bytes(raw)
        elif kind == 1 and len(bent) > 1:
            del bent[at]
        elif kind == 2:
            bent.insert(self._chance.randrange(len(bent) + 1), bent[at])
        elif kind == 3:
            self._chance.shuffle(bent)
        elif kind == 4 and isinstance(bent[at], bytes):
            bent[at] = bent[at][: self._chance.randrange(len(bent[at]) + 1)]
        elif kind == 5:
            bent[at:] = [self._chance.choice([ProcessDiedError("died"), DeadlineError("late"), DataError("gone")])]
        else:
            bent[at] = self._chance.randbytes(len(bent[at])) if isinstance(bent[at], bytes) else bent[at]

    def bend(self, steps: list[TransferStep]) -> list[TransferStep]:
        if not self.on or self._chance.random() < 0.8:
            return steps
        return self._chance.choice([steps[1:], steps[:-1], steps[::-1], [*steps, *steps]])


async def one_seed(seed: str, published: Published, folder: Path) -> int:
    """Versions taken through a wire that fails; returns how many ways failed. Raises AssertionError."""
    chance = random.Random(seed)
    chaos, wire = Chaos(chance), Wire(published)
    wire.damage, wire.bend = chaos.damage, chaos.bend

    def look() -> None:
        assert wrong_copies(folder, published) == [], seed

    wire.on_piece = look if chance.random() < 0.05 else (lambda: None)
    pulls = pulls_of(wire, folder)
    failed = 0
    for _ in range(chance.choice([1, 1, 2, 3])):
        wanted = chance.sample(sorted(published.versions), chance.choice([1, 1, 2]))
        asked = [asyncio.create_task(fetch(pulls, published, version)) for version in wanted]
        if chance.random() < 0.2:
            # The receiver dies, at any moment. What comes after it knows nothing of it.
            for _ in range(chance.randrange(12)):
                await asyncio.sleep(0)
            await pulls.close()
            failed += pulls.figures.failed_ways
            await asyncio.gather(*asked, return_exceptions=True)
            pulls = pulls_of(wire, folder)
            (folder / "0.1.part").write_bytes(b"left")
            continue
        for one in await asyncio.gather(*asked, return_exceptions=True):
            assert one is None or isinstance(one, DataError | ComponentError), (seed, one)
        look()
        if chance.random() < 0.5:
            pulls.keep_only(wanted)
    chaos.on = False
    for version in chance.sample(sorted(published.versions), chance.choice([1, 1, 2])):
        await fetch(pulls, published, version)
        assert (folder / f"{version}.weights").exists(), seed
    look()
    await pulls.close()
    assert not list(folder.parent.glob(folder.name)), seed
    return failed + pulls.figures.failed_ways


async def test_r9_whatever_happens_to_the_pieces_no_unverified_version_is_there_and_it_ends_well(
    published: Published, tmp_path: Path
) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    failed = 0
    for number in range(SEEDS):
        try:
            failed += await one_seed(f"{seed}/{number}", published, tmp_path / "copies")
        except (AssertionError, DataError, ComponentError) as error:
            raise AssertionError(f"seed {seed}/{number}: {error}") from error
    assert failed > SEEDS / 2
    assert open_files(tmp_path) == [], f"seed {seed}"


def open_files(folder: Path) -> list[str]:
    """What this process holds open below a folder, removed files too."""
    held = []
    for one in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that reads this folder
            held.append(str(one.readlink()))
    return [path for path in held if path.startswith(str(folder))]


# ---- the shelf


def test_a_version_that_was_taken_back_is_no_way_unless_deltas_lead_to_it(tmp_path: Path) -> None:
    published = publish_steps(tmp_path / "published", steps=3)
    shelf, wanted = VersionShelf(RUN, KEY, tmp_path / "published"), encode(published.versions[v(3)])
    (tmp_path / "published" / "0.3.weights").unlink()
    assert [step.kind for step in shelf.plan(wanted, v(1))] == ["delta", "delta"]
    with pytest.raises(DataError, match=r"version 0\.3: .* is gone"):
        shelf.plan(wanted, None)
    with pytest.raises(DataError, match=r"version 0\.3: .*cannot be read"):
        shelf.content(Item("anchor", v(3)))
    (tmp_path / "published" / "0.2.delta").unlink()
    with pytest.raises(DataError, match=r"the delta of version 0\.2: .* is gone"):
        shelf.content(Item("delta", v(2)))
    with pytest.raises(DataError, match="is gone"):
        shelf.plan(wanted, v(1))
    assert shelf.still_there([v(2)]) == {Item("anchor", v(2)), Item("delta", v(3))}


async def test_where_nothing_compiles_what_reads_deltas_each_version_comes_in_full(
    published: Published, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("numba.config.DISABLE_JIT", 1)
    wire = Wire(published)
    pulls = pulls_of(wire, tmp_path / "copies")
    await fetch(pulls, published, v(2))
    await fetch(pulls, published, v(3))
    assert wire.ways == [[("anchor", v(2))], [("anchor", v(3))]]
    assert wrong_copies(tmp_path / "copies", published) == []
