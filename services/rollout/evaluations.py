"""Evaluation inside a replica: a second engine with weights of its own, stepped when the stream leaves room.

The version is pinned in that engine, so a score is of one version whatever the stream takes up meanwhile, and no
training seed is touched.
"""

from collections.abc import Mapping
from pathlib import Path

import torch

from streamrl.config import Config
from streamrl.engines.base import Engine
from streamrl.engines.build import build_evaluation_engine
from streamrl.evaluation import Evaluation, Evaluator, held_out_prompts, held_out_sets
from streamrl.models.tokenizer import TextTokenizer
from streamrl.tasks.base import Task
from streamrl.types import EvalSampling, UpdateMode, Version


class HeldOut:
    """The held-out prompts of a task and the engine that answers them, made at the first use, in the engine thread."""

    def __init__(self, config: Config, folder: Path, max_length: int, task: Task, tokenizer: TextTokenizer) -> None:
        self._config = config
        self._folder = folder
        self._max_length = max_length
        self._task = task
        self._tokenizer = tokenizer
        self._engine: Engine | None = None
        self._evaluator: Evaluator | None = None

    def work(
        self, tensors: Mapping[str, torch.Tensor], version: Version, sampling: EvalSampling | None = None
    ) -> "EvaluationWork":
        """The evaluation of one version, to be stepped to its end. Keep `tensors` until then. sampling: in the place of
        the configuration's."""
        return EvaluationWork(self, tensors, version, sampling)

    def result(self) -> Evaluation:
        """The answers, once the work is done."""
        return self.evaluator().result()

    def evaluator(self) -> Evaluator:
        """Called in the engine thread first."""
        if self._evaluator is None:
            self._engine = build_evaluation_engine(self._config, self._folder, self._max_length)
            settings = self._config.eval
            self._evaluator = Evaluator(
                self._engine,
                held_out_prompts(self._task, settings.max_items),
                self._tokenizer,
                max_new_tokens=self._config.rollout.sampling.max_new_tokens,
                samples=settings.samples,
                temperature=settings.temperature,
                sets=held_out_sets(self._task, settings.max_items),
            )
        return self._evaluator

    def load(self, tensors: Mapping[str, torch.Tensor], version: Version) -> None:
        self.evaluator()
        assert self._engine is not None
        if self._engine.version != version:
            self._engine.load_weights(tensors, version, UpdateMode.KEEP)


class EvaluationWork:
    """`streamrl.services.rollout.engine_thread.SpareWork`: the first step loads the version and submits the prompts."""

    def __init__(
        self, held_out: HeldOut, tensors: Mapping[str, torch.Tensor], version: Version, sampling: EvalSampling | None
    ) -> None:
        self._held_out = held_out
        self._sampling = sampling
        self._tensors = tensors
        self._version = version
        self._started = False

    @property
    def done(self) -> bool:
        return self._started and self._held_out.evaluator().done

    @property
    def ready(self) -> bool:
        """Always: the engine has work until it is done."""
        return True

    def step(self) -> None:
        if self._started:
            self._held_out.evaluator().step()
            return
        self._held_out.load(self._tensors, self._version)
        self._held_out.evaluator().start(self._version, self._sampling)
        self._started = True
