"""Evaluation of a run of episodes inside a replica: a second engine, stepped when the stream leaves room.

The episodes are tasks of the replica's event loop; the engine thread steps the engine that answers them.
"""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path

import torch

from streamrl.config import Config
from streamrl.engines.base import Engine
from streamrl.engines.build import build_evaluation_engine
from streamrl.environments.driven.drive import TurnRequests
from streamrl.environments.driven.evaluation import EpisodeEvaluator
from streamrl.environments.play import Player
from streamrl.evaluation import Evaluation, held_out_prompts, held_out_sets
from streamrl.models.tokenizer import TextTokenizer
from streamrl.tasks.base import Task
from streamrl.types import EvalSampling, UpdateMode, Version


class EpisodesHeldOut:
    """The held-out prompts of a task and what plays them. loop: the replica's. wake: wakes the engine thread."""

    def __init__(
        self,
        config: Config,
        folder: Path,
        max_length: int,
        task: Task,
        tokenizer: TextTokenizer,
        player: Player,
        loop: asyncio.AbstractEventLoop,
        wake: Callable[[], None],
    ) -> None:
        self._config = config
        self._folder = folder
        self._max_length = max_length
        self._loop = loop
        self._wake = wake
        self._engine: Engine | None = None
        self._result: Evaluation | None = None
        settings = config.eval
        self._evaluator = EpisodeEvaluator(
            player,
            held_out_prompts(task, settings.max_items),
            tokenizer,
            max_new_tokens=config.rollout.sampling.max_new_tokens,
            samples=settings.samples,
            temperature=settings.temperature,
            sets=held_out_sets(task, settings.max_items),
        )

    def work(
        self, tensors: Mapping[str, torch.Tensor], version: Version, sampling: EvalSampling | None = None
    ) -> "EpisodeEvaluationWork":
        """The evaluation of one version, to be stepped to its end. Keep `tensors` until then. sampling: in the place of
        the configuration's."""
        return EpisodeEvaluationWork(self, tensors, version, sampling)

    def result(self) -> Evaluation:
        """The answers, once the work is done."""
        assert self._result is not None, "asked before the work was done"
        return self._result

    def begin(
        self, tensors: Mapping[str, torch.Tensor], version: Version, sampling: EvalSampling | None
    ) -> tuple[Engine, TurnRequests, Future[None]]:
        """In the engine thread: the engine under the version, what the episodes ask it, and their end."""
        if self._engine is None:
            self._engine = build_evaluation_engine(self._config, self._folder, self._max_length)
        if self._engine.version != version:
            self._engine.load_weights(tensors, version, UpdateMode.KEEP)
        requests = TurnRequests(self._wake)
        playing = asyncio.run_coroutine_threadsafe(self._play(version, requests, sampling), self._loop)
        playing.add_done_callback(lambda _end: self._wake())
        return self._engine, requests, playing

    def step(self, engine: Engine, requests: TurnRequests) -> None:
        """In the engine thread: step, and hand over what finished."""
        finished = engine.step()
        if finished:
            self._loop.call_soon_threadsafe(requests.give, finished)

    async def _play(self, version: Version, requests: TurnRequests, sampling: EvalSampling | None) -> None:
        self._result = await self._evaluator.play(version, requests.generate, sampling)


class EpisodeEvaluationWork:
    """`streamrl.services.rollout.engine_thread.SpareWork`: the first step loads the version and begins the episodes."""

    def __init__(
        self,
        held_out: EpisodesHeldOut,
        tensors: Mapping[str, torch.Tensor],
        version: Version,
        sampling: EvalSampling | None,
    ) -> None:
        self._held_out = held_out
        self._sampling = sampling
        self._tensors = tensors
        self._version = version
        self._begun: tuple[Engine, TurnRequests, Future[None]] | None = None

    @property
    def done(self) -> bool:
        return self._begun is not None and self._begun[2].done()

    @property
    def ready(self) -> bool:
        """Whether a step would do anything: all episodes may wait for their environments."""
        if self._begun is None:
            return True
        engine, requests, playing = self._begun
        return requests.some or engine.has_work or playing.done()

    def step(self) -> None:
        if self._begun is None:
            self._begun = self._held_out.begin(self._tensors, self._version, self._sampling)
            return
        engine, requests, playing = self._begun
        if playing.done():
            playing.result()
        if new := requests.take():
            engine.submit(new)
        if engine.has_work:
            self._held_out.step(engine, requests)
