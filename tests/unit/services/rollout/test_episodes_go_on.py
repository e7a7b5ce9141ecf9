"""An episode whose replica died: played again elsewhere, with the tokens of its turns as far as it goes as it went."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.data.chat_model import write_rows
from support.engines.calling_model import prepare_calling_model
from support.runs.probe_parts import with_replica

from streamrl.config import Config
from streamrl.config.schema.data import DataConfig
from streamrl.config.schema.environment import EnvironmentConfig
from streamrl.config.schema.learner import LearnerConfig
from streamrl.config.schema.rollout import RolloutConfig, SamplingConfig
from streamrl.config.schema.run import ModelConfig, QueueConfig
from streamrl.services.rollout.actor import RolloutReplica
from streamrl.services.rollout.rows import FinishedEpisode
from streamrl.services.run.folder import RunFolder
from streamrl.types import Ticket, Version

GROUP_SIZE = 4
SERVING = Version(0, 0)
# The engine has the version before the first one, of step -1.
FIRST, AGAIN = (Ticket(4, 3, 0, attempt, 0) for attempt in (0, 1))


def configured(folder: Path, **rollout: Any) -> Config:
    prepare_calling_model(folder / "model")
    rows = write_rows(folder / "rows.jsonl", [{"prompt": "hi", "answer": str(number)} for number in range(6)])
    options = {"moods": str(folder / "moods")}
    return Config(
        model=ModelConfig(path=str(folder / "model")),
        data=DataConfig(train=str(rows), cache=str(folder / "cache")),
        environment=EnvironmentConfig(name="support.environments.games:Moody", options=options, max_tokens=64),
        rollout=RolloutConfig(
            group_size=GROUP_SIZE,
            engine="scripted",
            sampling=SamplingConfig(max_new_tokens=6),
            **{"journal_every_tokens": 3, **rollout},
        ),
        learner=LearnerConfig(max_staleness=1),
        queue=QueueConfig(durability="memory", commit_interval_ms=0.0, segment_bytes=2**16),
    )


def played(
    config: Config,
    folder: Path,
    ticket: Ticket,
    *,
    epoch: int = 0,
    serving: Version = SERVING,
    then: Callable[[RolloutReplica], Awaitable[None]] | None = None,
) -> tuple[list[FinishedEpisode], dict[str, Any]]:
    """The episodes of a group at a replica that dies before anybody has accepted them, and what it says of itself."""

    async def use(replica: RolloutReplica, run: RunFolder) -> tuple[list[FinishedEpisode], dict[str, Any]]:
        ended: list[FinishedEpisode] = []
        all_ended = asyncio.Event()

        def take(finished: Sequence[FinishedEpisode], count: int, idle: bool) -> None:
            ended.extend(finished)
            if len(ended) == GROUP_SIZE:
                all_ended.set()

        replica._rollouts._ended = take
        try:
            await replica._rollouts.begin(await replica._requests.of([ticket]), lambda: serving)
            await asyncio.wait_for(all_ended.wait(), 60.0)
            await replica._journal.turn()
            replica._state.update(0, serving)
            return ended, await replica.status()
        finally:
            await replica._rollouts.close()

    return asyncio.run(with_replica(config, folder / "run", use, epoch))


def rows_of(episodes: Sequence[FinishedEpisode]) -> dict[str, Any]:
    """By rollout: of each turn its prompt, tokens, log-probs and versions."""
    return {
        one.rollout: [
            [
                (list(turn.prompt_ids), list(turn.token_ids), list(turn.logprobs), list(turn.spans))
                for turn in branch.turns
            ]
            for branch in one.episode.branches
        ]
        for one in episodes
    }


def turns_of(episodes: Sequence[FinishedEpisode]) -> int:
    return sum(len(branch.turns) for one in episodes for branch in one.episode.branches)


def sampled(episodes: Sequence[FinishedEpisode]) -> int:
    return sum(len(turn.token_ids) for one in episodes for branch in one.episode.branches for turn in branch.turns)


def test_where_the_environment_answers_as_it_did_nothing_is_sampled_again(tmp_path: Path) -> None:
    config = configured(tmp_path)
    before, _ = played(config, tmp_path, FIRST)
    after, status = played(config, tmp_path, AGAIN, epoch=1)
    assert turns_of(before) > GROUP_SIZE
    assert rows_of(after) == rows_of(before)
    assert [one.episode.record for one in after] != []
    assert {one.rollout: one.episode.record for one in after} == {one.rollout: one.episode.record for one in before}
    assert status["generated_tokens"] == 0
    assert (status["rollouts_continued"], status["rollouts_begun_anew"]) == (GROUP_SIZE, 0)
    assert status["tokens_continued"] == sampled(before)


def test_a_third_replica_goes_on_from_what_the_second_went_on_from(tmp_path: Path) -> None:
    config = configured(tmp_path)
    before, _ = played(config, tmp_path, FIRST)
    played(config, tmp_path, AGAIN, epoch=1)
    for path in (tmp_path / "run/queue/partials").glob("rollout-0-0-*"):
        path.unlink()
    after, status = played(config, tmp_path, Ticket(4, 3, 0, 2, 0), epoch=2)
    assert rows_of(after) == rows_of(before)
    assert status["generated_tokens"] == 0


def test_from_where_the_environment_answers_otherwise_all_is_sampled_anew(tmp_path: Path) -> None:
    config = configured(tmp_path)
    before, _ = played(config, tmp_path, FIRST)
    (tmp_path / "moods").write_text("h")  # its first answer is another one now
    after, status = played(config, tmp_path, AGAIN, epoch=1)
    first, again = rows_of(before), rows_of(after)
    kept = 0
    for rollout, ((turn, second, *_), *_) in again.items():
        assert turn == first[rollout][0][0]
        assert second[0] != first[rollout][0][1][0], "what it was told"
        kept += len(turn[1])
    assert status["tokens_continued"] == kept
    assert status["generated_tokens"] == sampled(after) - kept > 0
    assert status["rollouts_continued"] == GROUP_SIZE


def test_tokens_of_a_version_that_is_newer_than_the_one_that_serves_are_not_used(tmp_path: Path) -> None:
    config = configured(tmp_path)
    played(config, tmp_path, FIRST)
    after, status = played(config, tmp_path, AGAIN, epoch=1, serving=Version(-2, 0))
    assert status["tokens_continued"] == 0
    assert status["rollouts_begun_anew"] == GROUP_SIZE
    assert status["generated_tokens"] == sampled(after)


def test_tokens_that_would_be_too_old_are_not_used(tmp_path: Path) -> None:
    config = configured(tmp_path)
    played(config, tmp_path, FIRST)
    _, status = played(config, tmp_path, Ticket(4, 3, 0, 1, 1), epoch=1)
    assert (status["tokens_continued"], status["rollouts_begun_anew"]) == (0, GROUP_SIZE)


@pytest.mark.parametrize("every", [0, 1000])
def test_whole_turns_are_written_down_however_short_unless_the_journal_is_off(tmp_path: Path, every: int) -> None:
    config = configured(tmp_path, journal_every_tokens=every)
    before, _ = played(config, tmp_path, FIRST)
    after, status = played(config, tmp_path, AGAIN, epoch=1)
    assert rows_of(after) == rows_of(before)
    assert status["tokens_continued"] == (sampled(before) if every else 0)


def test_what_was_accepted_leaves_no_journal(tmp_path: Path) -> None:
    config = configured(tmp_path)

    async def use(replica: RolloutReplica, run: RunFolder) -> list[Path]:
        done = asyncio.Event()
        names: list[str] = []

        def take(finished: Sequence[FinishedEpisode], count: int, idle: bool) -> None:
            names.extend(one.rollout for one in finished)
            if len(names) == GROUP_SIZE:
                done.set()

        replica._rollouts._ended = take
        await replica._rollouts.begin(await replica._requests.of([FIRST]), lambda: SERVING)
        await asyncio.wait_for(done.wait(), 60.0)
        await replica._journal.turn()
        assert list((run.path / "queue/partials").glob("*.arrow")) != []
        replica._journal.ended(names)
        await replica._rollouts.close()
        await asyncio.to_thread(replica._journal.close)
        return list((run.path / "queue/partials").glob("*.arrow"))

    assert asyncio.run(with_replica(config, tmp_path / "run", use)) == []
