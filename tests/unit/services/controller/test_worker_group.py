"""The actors of a worker group: called as the table says, heard in any order, and whose error it was."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray
from support.learner.probe_learner import open_run
from support.runs.probe_parts import Handle

from streamrl.config import Config
from streamrl.config.schema.learner import LearnerConfig
from streamrl.errors import ComponentError, DataError, DeadlineError, NonFiniteError, ProcessDiedError
from streamrl.learner.batch.balance import split_rows
from streamrl.learner.parallel.dispatch import Dispatch, DispatchTable
from streamrl.learner.parallel.late_ranks import Progress
from streamrl.learner.parallel.rank_mesh import RankMesh
from streamrl.services.controller.learners import LEARNER_CALLS, Learners
from streamrl.services.controller.parts import Parts
from streamrl.services.controller.worker_group import WorkerGroup
from streamrl.services.learner.actor import LearnerRank

TABLE = DispatchTable(
    "scorer", {"score": Dispatch.DATA_PARALLEL, "run": Dispatch.ONE_TO_ALL, "end": Dispatch.RANK_ZERO}
)


class Rank:
    """In the place of a Ray handle, of which every method is one coroutine function."""

    def __init__(self, answer: Callable[..., Awaitable[Any]]) -> None:
        self._answer = answer

    def __getattr__(self, name: str) -> "Rank":
        return self

    def remote(self, *args: Any) -> Awaitable[Any]:
        return self._answer(*args)


def group_of(*answers: Callable[..., Awaitable[Any]], tensor_size: int = 1, death_wait_s: float = 60.0) -> WorkerGroup:
    mesh = RankMesh.of(len(answers), tensor_size)
    ranks: list[Any] = [Rank(answer) for answer in answers]
    return WorkerGroup(TABLE, mesh, ranks, death_wait_s)


def raised(error: Exception) -> Callable[..., Awaitable[Any]]:
    """What a rank does that raises an error of its own: Ray passes it on."""

    async def answer(*args: Any) -> Any:
        raise ray.exceptions.RayTaskError("run", "the remote traceback", error).as_instanceof_cause()

    return answer


async def died(*args: Any) -> Any:
    raise ray.exceptions.ActorDiedError()


async def ended(*args: Any) -> str:
    return "well"


async def never(*args: Any) -> Any:
    await asyncio.get_running_loop().create_future()


# ---- calls


@pytest.mark.parametrize("tensor_size", [1, 2])
async def test_rows_come_back_in_their_order_whichever_rank_is_done_first(tensor_size: int) -> None:
    lengths_N = np.array([40, 1, 7, 7, 90, 2, 3, 11])
    last_first = [asyncio.Event() for _ in range(3 * tensor_size + 1)]
    last_first[-1].set()

    def rank(number: int) -> Callable[..., Awaitable[Any]]:
        async def score(lengths: np.ndarray, words: list[str]) -> np.ndarray:
            assert len(lengths) == len(words)
            await last_first[number + 1].wait()
            last_first[number].set()
            # A rank that is not the first of its tensor-parallel group has nothing to say for its rows.
            return -2 * lengths if number % tensor_size == 0 else np.zeros(0)

        return score

    group = group_of(*map(rank, range(3 * tensor_size)), tensor_size=tensor_size)
    parts = split_rows(lengths_N, np.arange(8), 3, hidden_size=64)
    scores = await group.call("score", lengths_N, list("abcdefgh"), parts=parts)
    np.testing.assert_array_equal(scores, -2 * lengths_N)


async def test_every_rank_is_asked_at_once_and_the_answers_are_listed_by_rank() -> None:
    all_there = asyncio.Barrier(3)

    def rank(number: int) -> Callable[..., Awaitable[Any]]:
        async def run(step: int) -> tuple[int, int]:
            await all_there.wait()
            return number, step

        return run

    assert await group_of(*map(rank, range(3))).call("run", 5) == [(0, 5), (1, 5), (2, 5)]


async def test_rank_zero_alone_is_asked_and_answers() -> None:
    assert await group_of(ended, never).call("end") == "well"


async def test_a_call_that_cannot_be_cut_reaches_no_rank() -> None:
    asked: list[int] = []

    async def heard(*args: Any) -> None:
        asked.append(len(args))

    group = group_of(heard, heard)
    with pytest.raises(ValueError, match="scorer has no method 'stop' in its table; it has end, run, score"):
        await group.call("stop")
    with pytest.raises(ValueError, match="argument 1 is 2 values"):
        await group.call("score", [1, 2, 3], [1, 2], parts=[np.array([0, 2]), np.array([1])])
    assert asked == []


def test_a_group_has_as_many_actors_as_its_mesh() -> None:
    with pytest.raises(ValueError, match="2 actors for a mesh of 4 ranks"):
        WorkerGroup(TABLE, RankMesh(2, 2), [Handle(), Handle()])


# ---- errors


async def test_an_answer_of_too_few_rows_is_its_ranks_error() -> None:
    async def score(rows: list[int]) -> list[int]:
        return rows[1:]

    async def whole(rows: list[int]) -> list[int]:
        return rows

    with pytest.raises(ComponentError, match=r"scorer-1\.score answered 1 values for 2 rows"):
        await group_of(whole, score).call("score", [7, 8, 9], parts=[np.array([1]), np.array([0, 2])])


async def test_an_error_that_is_not_ours_is_told_with_its_ranks_name_and_keeps_the_remote_traceback() -> None:
    with pytest.raises(ComponentError) as caught:
        await group_of(ended, raised(KeyError("rows")), ended).call("run")
    assert str(caught.value) == "scorer-1: KeyError: 'rows'"
    assert "the remote traceback" in str(caught.value.__cause__)


async def test_an_error_of_ours_stays_as_ray_gives_it() -> None:
    with pytest.raises(NonFiniteError) as caught:
        await group_of(ended, raised(NonFiniteError("learner step 3: the loss is nan"))).call("run")
    assert isinstance(caught.value, ray.exceptions.RayTaskError)


@pytest.mark.parametrize("late", [0, 1])
async def test_a_deadline_names_the_rank_that_the_others_waited_for(late: int) -> None:
    """The rank that hangs neither ends its call nor raises."""
    waits = Progress(3, "forward_backward", "distributed/c10d.py:1 all_reduce", waits=True)
    hangs = Progress(3, "read", "segments/reader.py:81 read")
    over = DeadlineError(f"learner-{1 - late}: step 3 took longer than 10 s")

    def handle(rank: int) -> SimpleNamespace:
        async def progress() -> Progress:
            return hangs if rank == late else waits

        return SimpleNamespace(run=Rank(never if rank == late else raised(over)), progress=Rank(progress))

    handles: list[Any] = [handle(0), handle(1)]
    group = WorkerGroup(LEARNER_CALLS, RankMesh.of(2, 1), handles, 0.0, progress="progress")
    with pytest.raises(DeadlineError) as caught:
        await group.call("run")
    assert str(caught.value).startswith(
        f"learner-{1 - late}: step 3 took longer than 10 s; the others wait for learner-{late} in read of step 3 at "
        "segments/reader.py:81 read"
    )


async def test_the_death_of_a_rank_is_told_before_the_error_that_it_caused_in_another() -> None:
    echoed = asyncio.Event()

    async def breaks(*args: Any) -> Any:
        echoed.set()
        return await raised(RuntimeError("connection closed by peer"))()

    async def dies_later(*args: Any) -> Any:
        await echoed.wait()
        for _ in range(20):  # turns of the loop, while the first error is known already
            await asyncio.sleep(0)
        return await died()

    with pytest.raises(ProcessDiedError, match="scorer-1: its process died"):
        await group_of(breaks, dies_later).call("run")


async def test_the_death_of_a_part_that_a_rank_needs_is_not_the_death_of_a_rank() -> None:
    with pytest.raises(ray.exceptions.RayError) as caught:
        await group_of(ended, raised(ray.exceptions.ActorDiedError())).call("run")
    assert not isinstance(caught.value, ProcessDiedError)


async def test_ranks_that_wait_for_one_that_failed_are_given_up() -> None:
    given_up = asyncio.Event()

    async def waits(*args: Any) -> None:
        try:
            await never()
        finally:
            given_up.set()

    with pytest.raises(DataError):
        await group_of(waits, raised(DataError("damage")), death_wait_s=0.0).call("run")
    assert given_up.is_set()


# ---- the learner's ranks


def test_the_learners_table_has_every_method_of_a_rank_and_no_other() -> None:
    methods = inspect.getmembers(LearnerRank, inspect.iscoroutinefunction)
    assert LEARNER_CALLS.methods == sorted(name for name, _ in methods if not name.startswith("_"))


class HeardParts(Parts):
    """Its ranks say what they are called with, and by which number."""

    def __init__(self, run_folder: str, config: Config) -> None:
        super().__init__(run_folder, config)
        self.heard: list[tuple[Any, ...]] = []

    def _make(self, name: str, cls: type, threads: int, *args: Any, **options: Any) -> Any:
        number = args[0]
        heard = {
            name: lambda *told, name=name: self.heard.append((number, name, *told)) or number
            for name in LEARNER_CALLS.methods
        }
        return Handle(**heard)


def learners_of(folder: Path, *, ranks: int, tensor_size: int) -> tuple[Learners, HeardParts]:
    config = Config(learner=LearnerConfig(num_workers=ranks, tensor_parallel=tensor_size))
    run = open_run(config, folder)
    parts = HeardParts(str(run.path), config)
    return Learners(parts, run, Handle(), Handle(), RankMesh.of(ranks, tensor_size)), parts


async def test_collective_methods_are_all_ranks_and_orders_are_rank_zeros(tmp_path: Path) -> None:
    learners, parts = learners_of(tmp_path / "run", ranks=4, tensor_size=2)
    learners.make()
    assert await learners.call("enter", 3) == [0, 1, 2, 3]
    await learners.expect_replicas(2)
    await learners.stop()
    await learners.finish()
    for call in learners.closing():
        await call
    orders = [(0, "expect_replicas", 2), (0, "stop"), (0, "finish")]
    assert parts.heard == [*((rank, "enter", 3) for rank in range(4)), *orders, *((rank, "close") for rank in range(4))]


async def test_ranks_that_are_not_made_yet_have_nothing_to_stop_or_to_close(tmp_path: Path) -> None:
    learners, parts = learners_of(tmp_path / "run", ranks=2, tensor_size=1)
    await learners.stop()
    assert learners.closing() == []
    assert parts.heard == []
