"""A replica's journal: what runs is written, what ended goes, and rollouts that were issued again go on."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamrl.buffers.segments.partial_log import SEALED_KEPT, read_partials
from streamrl.config import Config
from streamrl.config.schema.learner import LearnerConfig
from streamrl.config.schema.rollout import RolloutConfig, SamplingConfig
from streamrl.config.schema.run import QueueConfig
from streamrl.scheduling.partial_rollouts import PartialChains
from streamrl.services.rollout.partial_journal import JournalFigures, PartialJournal
from streamrl.services.rollout.rows import Issued
from streamrl.types import GenerationRequest, PartialTokens, SamplingParams, Ticket, Version, VersionSpan

FOLDER = "queue/partials"
SERVING = Version(0, 5)


def config(*, every: int = 8, max_staleness: int = 2, new: int = 1000, drain: bool = False) -> Config:
    sampling = SamplingConfig(max_new_tokens=new)
    mode = "drain" if drain else "keep"
    return Config(
        rollout=RolloutConfig(journal_every_tokens=every, update_mode=mode, sampling=sampling),
        learner=LearnerConfig(max_staleness=max_staleness),
        queue=QueueConfig(durability="memory", commit_interval_ms=0.0, segment_bytes=2**13),
    )


async def at_once(what: str, work: Awaitable[Any]) -> Any:
    return await work


def journal(folder: Path, *, epoch: int = 0, words: list[str] | None = None, **settings: int) -> PartialJournal:
    tell: Callable[[str], None] = [].append if words is None else words.append
    return PartialJournal(folder, config(**settings), "rollout-0", epoch, "", at_once, tell)


def issued(rollout: int, *, attempt: int = 0, last_step: int = 7) -> Issued:
    ticket = Ticket(rollout, rollout, 0, attempt, last_step)
    return Issued(ticket, 0, "g.0", "p", np.array([1], np.int32), "{}", 0)


def all_issued(count: int, **ticket: int) -> dict[str, Issued]:
    return {f"g.0/{i}": issued(i, **ticket) for i in range(count)}


def requests(count: int) -> list[GenerationRequest]:
    prompt = np.array([1], np.int32)
    return [GenerationRequest(f"g.0/{i}", prompt, i, SamplingParams(), ()) for i in range(count)]


def piece(rollout: int, start: int = 0, *, count: int = 8, step: int = 5) -> PartialTokens:
    ids = np.arange(start, start + count, dtype=np.int32)
    return PartialTokens(f"g.0/{rollout}", start, ids, -ids.astype(np.float32), (VersionSpan(start, Version(0, step)),))


async def written(one: PartialJournal, *pieces: PartialTokens, of: dict[str, Issued]) -> None:
    """Collect pieces, and write them as the journal's loop does."""
    one.collect(pieces, of)
    await one.turn()


def there(folder: Path, *rollouts: int) -> list[tuple[int, int, int]]:
    """(attempt, start, end) of each piece on disk."""
    names = [f"g.0/{one}" for one in rollouts]
    return [(one.attempt, one.tokens.start, one.tokens.end) for one in read_partials(folder, FOLDER, names, print)]


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / FOLDER).glob("*.arrow"))


async def test_what_runs_is_on_disk_under_its_attempt_and_what_nobody_waits_for_is_not(tmp_path: Path) -> None:
    one = journal(tmp_path)
    of = {"g.0/0": issued(0), "g.0/1": issued(1, attempt=3)}
    await written(one, piece(0), piece(1), piece(2), of=of)
    await written(one, piece(0, 8), of=of)
    assert there(tmp_path, 0, 1, 2) == [(0, 0, 8), (3, 0, 8), (0, 8, 16)]
    one.close()


async def test_what_is_accepted_before_it_is_written_is_not_written(tmp_path: Path) -> None:
    one = journal(tmp_path)
    one.collect([piece(0), piece(1)], all_issued(2))
    one.ended(["g.0/0"])
    one.close()
    assert there(tmp_path, 0, 1) == [(0, 0, 8)]
    assert there(tmp_path, 0) == []


async def test_when_all_is_accepted_no_file_stays(tmp_path: Path) -> None:
    one = journal(tmp_path)
    of = all_issued(4)
    await written(one, *(piece(i) for i in range(4)), of=of)
    assert files(tmp_path) == ["rollout-0-0-0.arrow"]
    one.ended(list(of))
    one.close()
    assert files(tmp_path) == []


async def test_a_stopped_replica_leaves_what_runs(tmp_path: Path) -> None:
    one = journal(tmp_path)
    await written(one, piece(0), of=all_issued(1))
    one.collect([piece(0, 8, count=3)], all_issued(1))
    one.close()
    assert there(tmp_path, 0) == [(0, 0, 8), (0, 8, 11)]


async def test_invariant_9_one_long_rollout_among_many_does_not_keep_every_segment(tmp_path: Path) -> None:
    one = journal(tmp_path)
    long = {"g.0/0": issued(0)}
    for number in range(60):
        short = {f"g.0/{number + 1}": issued(number + 1)}
        await written(one, piece(0, 8 * number), piece(number + 1, count=150), of={**long, **short})
        one.ended(list(short))
        assert len(files(tmp_path)) <= SEALED_KEPT + 2
    chains = PartialChains()
    for found in read_partials(tmp_path, FOLDER, long, print):
        chains.add(found.attempt, found.tokens)
    whole = chains.newest("g.0/0", 1)
    assert whole is not None
    assert whole.token_ids.tolist() == list(range(480))
    one.ended(["g.0/0"])
    one.close()
    assert files(tmp_path) == []


# ---- issued again


async def died(folder: Path, *pieces: PartialTokens, **ticket: int) -> None:
    """A replica of epoch 0 wrote these pieces, and was killed."""
    one = journal(folder)
    await written(one, *pieces, of=all_issued(4, **ticket))


async def gone_on(
    folder: Path, *, serving: Version = SERVING, words: list[str] | None = None, **ticket: int
) -> tuple[list[int], PartialJournal]:
    """How many tokens each of three rollouts goes on from, when they are issued again."""
    one = journal(folder, epoch=1, words=words)
    told = await one.go_on(requests(3), all_issued(3, **{"attempt": 1, **ticket}), lambda: serving)
    return [0 if request.so_far is None else request.so_far.end for request in told], one


async def test_rollouts_issued_again_go_on_from_all_that_was_written(tmp_path: Path) -> None:
    await died(tmp_path, piece(0), piece(2), piece(0, 8), piece(0, 16, count=1))
    assert files(tmp_path) == ["rollout-0-0-0.arrow"]
    lengths, one = await gone_on(tmp_path)
    assert lengths == [17, 0, 8]
    assert one.figures == JournalFigures(0, 2, 25, 1)


async def test_first_attempts_look_for_nothing(tmp_path: Path) -> None:
    await died(tmp_path, piece(0))
    lengths, one = await gone_on(tmp_path, attempt=0)
    assert lengths == [0, 0, 0]
    assert one.figures.rollouts_begun_anew == 0


async def test_tokens_of_this_attempt_or_a_later_one_are_not_its_past(tmp_path: Path) -> None:
    await died(tmp_path, piece(0), attempt=1)
    assert (await gone_on(tmp_path))[0] == [0, 0, 0]


async def test_invariant_3_tokens_that_are_too_old_begin_anew(tmp_path: Path) -> None:
    await died(tmp_path, piece(0, step=4), piece(1, step=5), piece(2, step=6))
    assert (await gone_on(tmp_path, last_step=7))[0] == [0, 8, 0]


@pytest.mark.parametrize(
    ("settings", "serving", "goes_on"),
    [
        ({}, Version(0, 6), True),
        ({"drain": True}, Version(0, 6), False),
        ({"drain": True}, Version(0, 5), True),
        ({"max_staleness": 0}, Version(1, 5), False),
        ({"max_staleness": 0}, Version(0, 5), True),
    ],
)
async def test_invariant_4_where_rollouts_are_of_one_version_another_one_begins_anew(
    tmp_path: Path, settings: dict[str, Any], serving: Version, goes_on: bool
) -> None:
    await died(tmp_path, piece(0, step=5))
    one = journal(tmp_path, epoch=1, **settings)
    last_step = 5 + settings.get("max_staleness", 2)
    (request,) = await one.go_on(requests(1), all_issued(1, attempt=1, last_step=last_step), lambda: serving)
    assert (request.so_far is not None) == goes_on


async def test_a_version_that_is_taken_up_while_the_journals_are_read_is_the_one_that_counts(tmp_path: Path) -> None:
    await died(tmp_path, piece(0, step=5))
    one = journal(tmp_path, epoch=1, drain=True)
    serving = [Version(0, 5)]
    # Due as soon as the journal waits for its reader.
    asyncio.get_running_loop().call_soon(serving.append, Version(0, 6))
    (request,) = await one.go_on(requests(1), all_issued(1, attempt=1), lambda: serving[-1])
    assert request.so_far is None


async def test_a_damaged_journal_begins_anew_and_is_told(tmp_path: Path) -> None:
    await died(tmp_path, piece(0))
    (path,) = (tmp_path / FOLDER).glob("*.arrow")
    data = path.read_bytes()
    path.write_bytes(data[:400] + bytes(200) + data[600:])
    words: list[str] = []
    lengths, one = await gone_on(tmp_path, words=words)
    assert lengths == [0, 0, 0]
    assert one.figures.rollouts_begun_anew == 3
    assert len(words) == 1
    assert "rollout-0-0-0.arrow" in words[0]


async def test_what_goes_on_is_journalled_whole_under_the_new_attempt(tmp_path: Path) -> None:
    await died(tmp_path, piece(0))
    one = journal(tmp_path, epoch=1)
    again = all_issued(1, attempt=1)
    (request,) = await one.go_on(requests(1), again, lambda: Version(0, 5))
    assert request.so_far is not None
    await written(one, piece(0, count=16), of=again)
    assert there(tmp_path, 0) == [(0, 0, 8), (1, 0, 16)]
    one.close()


async def test_a_journal_is_removed_once_what_the_replica_serves_makes_it_too_old(tmp_path: Path) -> None:
    await died(tmp_path, piece(0, step=5))
    one = journal(tmp_path, epoch=1)
    for step, left in ((6, 1), (7, 1), (8, 0)):
        await one.serves(Version(0, step))
        assert len(files(tmp_path)) == left


@pytest.mark.parametrize(("every", "new", "journalled"), [(0, 1000, 0), (64, 64, 0), (64, 65, 64)])
async def test_it_is_off_where_it_could_never_write_anything(every: int, new: int, journalled: int) -> None:
    settings = config(every=every, new=new)
    assert PartialJournal(Path("/nowhere"), settings, "r", 0, "", at_once, print).every == journalled
    assert settings.journals_partials == (journalled > 0)


async def test_switched_off_it_reads_nothing(tmp_path: Path) -> None:
    await died(tmp_path, piece(0))
    one = journal(tmp_path, epoch=1, every=0)
    told: Sequence[GenerationRequest] = await one.go_on(requests(1), all_issued(1, attempt=1), lambda: Version(0, 5))
    assert told[0].so_far is None
    await one.serves(Version(0, 100))
    assert len(files(tmp_path)) == 1


# ---- of several turns


def turn(rollout: int, name: str, count: int = 8) -> PartialTokens:
    return replace(piece(rollout, count=count), request_id=f"g.0/{rollout}#{name}")


async def test_the_turns_of_a_rollout_go_with_it_and_no_others(tmp_path: Path) -> None:
    one = journal(tmp_path)
    await written(one, turn(0, "a"), turn(0, "b"), turn(1, "a"), of=all_issued(2))
    one.ended(["g.0/1"])
    await one.turn()
    one.close()
    found = read_partials(tmp_path, FOLDER, ["g.0/0", "g.0/1"], print)
    assert [piece.tokens.request_id for piece in found] == ["g.0/0#a", "g.0/0#b", "g.0/1#a"]
    again = journal(tmp_path, epoch=1)
    await written(again, turn(0, "a"), turn(0, "b"), of=all_issued(1, attempt=1))
    again.ended(["g.0/0"])
    again.close()
    assert files(tmp_path) == ["rollout-0-0-0.arrow"]


async def test_each_turn_goes_on_from_its_own_tokens(tmp_path: Path) -> None:
    await died(tmp_path, turn(0, "a"), turn(0, "b", count=3))
    one = journal(tmp_path, epoch=1)
    chains, of = await one.earlier(["g.0/0"]), issued(0, attempt=1)
    found = [one.usable(f"g.0/0#{name}", of, chains, SERVING) for name in "abc"]
    assert [None if tokens is None else tokens.end for tokens in found] == [8, 3, None]
