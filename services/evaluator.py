"""Held-out scores beside the stream: one pinned version at a time, on a replica that serves, outside the books.

    consumes versions to score; waits for the learner's publications and for a replica; unblocked by `publish`

A version that went away before it could be scored (its publisher died, the store was made anew) is passed over.
"""

import asyncio
from collections.abc import Awaitable, Callable

import ray
from ray.actor import ActorHandle

from services.books import RunBook
from services.deadline import within
from services.deaths import cause_of, process_died
from services.due import target_reached
from services.seat import Seat
from services.weights import EVALUATION
from streamrl.config import Config
from streamrl.errors import DataError, ProcessDiedError
from streamrl.evaluation import EvalScore
from streamrl.types import Version


class Evaluator:
    """One evaluation after the other. A replica or a reward stage that dies over it is asked again when it is back."""

    def __init__(
        self,
        config: Config,
        store: ActorHandle,
        reward: Seat,
        book: RunBook,
        on_target: Callable[[Version, float], Awaitable[None]],
    ) -> None:
        """on_target: called with each version that was due and has the score that the run aims at, and with that."""
        self._limit_s = config.deadlines.rollout_s
        self._config = config
        self._on_target = on_target
        self._store = store
        self._reward = reward
        self._book = book
        self._due: asyncio.Queue[Version] = asyncio.Queue()
        self._one = asyncio.Lock()
        self._serving: dict[str, ActorHandle] = {}
        self._serves = asyncio.Event()
        self._scores: Version | None = None

    @property
    def scores(self) -> str:
        """The version that is being scored; "" when none is."""
        return "" if self._scores is None else str(self._scores)

    def serves(self, name: str, replica: ActorHandle) -> None:
        """A replica serves from now on, or soon."""
        self._serving[name] = replica
        self._serves.set()

    def left(self, name: str) -> None:
        """It does not any more."""
        self._serving.pop(name, None)

    def due(self, version: Version) -> None:
        """Score this version, which is pinned already, when the ones before it are scored."""
        self._due.put_nowait(version)

    async def loop(self) -> None:
        while True:
            version = await self._due.get()
            try:
                score = await self.score(version)
                if target_reached(self._config, score):
                    await self._on_target(version, score)
            except DataError as error:
                self._book.report("notice", {"text": f"version {version} was not scored: {error}"})
            self._due.task_done()

    async def all_scored(self) -> None:
        """Wait until nothing is due any more."""
        await within(self._limit_s, self._due.join(), who="controller", what="the last evaluation")

    async def score(self, version: Version) -> float:
        """The held-out score of a version. Raises DataError when it is not kept any more."""
        async with self._one:
            self._scores = version
            try:
                manifest = await self._pinned(version)
                what = f"the evaluation of version {version}"
                score = await within(self._limit_s, self._scored(manifest), who="controller", what=what)
            finally:
                self._scores = None
                await self._store.unpin.remote(version, EVALUATION)
        self._book.scored(version, score.mean, score.num_failed)
        return score.mean

    async def _scored(self, manifest: bytes) -> EvalScore:
        answers = await self._answers(manifest)
        while True:
            reward = await self._reward.get()
            try:
                return await reward.score_evaluation.remote(answers)
            except ray.exceptions.RayError as error:
                if not process_died(error):
                    raise
                self._reward.leave(reward)

    async def _pinned(self, version: Version) -> bytes:
        try:
            return await self._store.pin.remote(version, EVALUATION)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, DataError):
                raise error.cause from error
            raise

    async def _answers(self, manifest: bytes) -> bytes:
        """Held-out answers of whichever replica serves; of another one when that dies over it."""
        while True:
            while not self._serving:
                self._serves.clear()
                await self._serves.wait()
            name = next(iter(self._serving))
            try:
                return await self._serving[name].evaluate.remote(manifest)
            except ray.exceptions.RayError as error:
                # It ends, too, when its server does, and can still say so.
                if not (process_died(error) or isinstance(cause_of(error), ProcessDiedError)):
                    raise
                self.left(name)
