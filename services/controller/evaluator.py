"""Held-out scores beside the stream: one pinned version at a time, on a replica that serves, outside the books.

    consumes versions to score; waits for the learner's publications and for a replica; unblocked by `publish`

A version that went away before it could be scored (its publisher died, the store was made anew) is passed over, and so
is one whose answers take too long: the replica that should give them is ended, since what hangs in it never would.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import ray
from ray.actor import ActorHandle

from streamrl.config import Config
from streamrl.errors import DataError, DeadlineError, ProcessDiedError
from streamrl.evaluation import EvalScore
from streamrl.services.actors.actor_slot import ActorSlot
from streamrl.services.actors.deadline import within
from streamrl.services.actors.deaths import cause_of, process_died
from streamrl.services.actors.step_schedule import target_reached
from streamrl.services.controller.books import RunBook
from streamrl.services.weights.actor import EVALUATION
from streamrl.types import EvalSampling, Version


class Evaluator:
    """One evaluation after the other. A replica or a reward stage that dies over it is asked again when it is back."""

    def __init__(
        self,
        config: Config,
        store: ActorHandle,
        reward: ActorSlot,
        book: RunBook,
        on_target: Callable[[Version, float], Awaitable[None]],
        fence: Callable[[str, str], object],
    ) -> None:
        """on_target: called with each version that was due and has the score that the run aims at, and with that.
        fence: ends a replica, by its name and for a reason."""
        self._limit_s = config.deadlines.rollout_s
        self._config = config
        self._on_target = on_target
        self._fence = fence
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
                if score is not None and target_reached(self._config, score):
                    await self._on_target(version, score)
            except (DataError, DeadlineError) as error:
                self._book.report("notice", {"text": f"version {version} was not scored: {error}"})
            self._due.task_done()

    async def all_scored(self) -> None:
        """Wait until nothing is due any more."""
        # Each may take its limit twice, for answers and for scores; the one under way is not in the queue any more.
        limit = self._limit_s * (2 * self._due.qsize() + 3)
        await within(limit, self._due.join(), who="controller", what="the last evaluation")

    async def score(self, version: Version) -> float | None:
        """The held-out score of a version, as `eval` has it; it is in the run's curve. None when no answer could be
        scored. Raises DataError when the version is not kept any more, DeadlineError when it is not there in time."""
        score = await self._evaluated(version, None)
        self._book.scored(version, score)
        return score.mean

    async def score_sampled(self, version: Version, sampling: EvalSampling) -> EvalScore:
        """What a version comes to with other samples, which are in no curve. Raises as `score` does."""
        return await self._evaluated(version, sampling)

    async def _evaluated(self, version: Version, sampling: EvalSampling | None) -> EvalScore:
        async with self._one:
            self._scores = version
            try:
                manifest = await self._pinned(version)
                limit_s = self._limit(sampling)
                answers = await self._answers(version, manifest, sampling, limit_s)
                return await self._scored(version, answers, limit_s)
            finally:
                self._scores = None
                await self._store.unpin.remote(version, EVALUATION)

    def _limit(self, sampling: EvalSampling | None) -> float:
        """Seconds; more samples than usual may take as much longer."""
        usual = self._config.eval.samples
        return self._limit_s if sampling is None else self._limit_s * max(1.0, sampling.samples / usual)

    async def _scored(self, version: Version, answers: bytes, limit_s: float) -> EvalScore:
        """The score of held-out answers, by whichever reward stage serves; by another one when that dies over it."""
        while True:
            reward = await self._reward.get()
            call: Any = reward.score_evaluation.remote(answers)
            what = f"the scores of version {version}"
            try:
                return await within(limit_s, call, who="reward", what=what)
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

    async def _answers(self, version: Version, manifest: bytes, sampling: EvalSampling | None, limit_s: float) -> bytes:
        """Held-out answers of whichever replica serves; of another one when that dies over it. One that does not give
        them in time is ended."""
        while True:
            while not self._serving:
                self._serves.clear()
                await self._serves.wait()
            name = next(iter(self._serving))
            call: Any = self._serving[name].evaluate.remote(manifest, sampling)
            what = f"the evaluation of version {version}"
            try:
                return await within(limit_s, call, who=name, what=what)
            except DeadlineError as error:
                self._fence(name, f"{error}; deadlines.rollout_s is {self._limit_s:g}")
                raise
            except ray.exceptions.RayError as error:
                # It ends, too, when its server does, and can still say so.
                if not (process_died(error) or isinstance(cause_of(error), ProcessDiedError)):
                    raise
                self.left(name)
