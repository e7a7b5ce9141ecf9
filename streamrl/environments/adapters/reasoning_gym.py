"""Tasks of `reasoning-gym`, made as they are needed: a row is a number, and the package makes a question of it."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from streamrl.environments.base import Done, Message
from streamrl.errors import ConfigError

ENDLESS = 2**31 - 1
"""Questions of a data set: each is made when it is asked for."""


class ReasoningGymEnvironment:
    """One question. task: a data set of the package. config: its settings. seed: of all questions. instructions: what
    each question begins with; a model that answers in `<answer>...</answer>` is scored by what stands there.

    Raises ConfigError for a data set that cannot be had.
    """

    def __init__(
        self, task: str, config: Mapping[str, Any] | None = None, seed: int = 0, instructions: str = ""
    ) -> None:
        self._data_set = _data_set(task, msgspec.json.encode(dict(config or {}), order="sorted"), seed)
        self._instructions = instructions

    def reset(self, row: dict[str, Any]) -> list[Message]:
        """The question of the row's `seed`."""
        self._entry = self._data_set[int(row["seed"])]
        question = str(self._entry["question"])
        return [{"role": "user", "content": f"{self._instructions}\n{question}" if self._instructions else question}]

    def step(self, message: Message) -> Done:
        """The package's own score of the answer."""
        from reasoning_gym.utils import extract_answer

        text = str(message["content"])
        answer = extract_answer(text) or text.strip()
        score = self._data_set.score_answer(answer=answer, entry=self._entry)
        return Done(float(score), info={"answer": self._entry["answer"]})


@lru_cache(maxsize=16)
def _data_set(task: str, config: bytes, seed: int) -> Any:
    """The same for all episodes of a process: some take a second to be made."""
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise ConfigError(
            "environment 'reasoning_gym': the package is not installed: pip install reasoning-gym"
        ) from error
    if task not in DATASETS:
        raise ConfigError(f"environment 'reasoning_gym': the package has no data set {task!r}")
    return reasoning_gym.create_dataset(task, size=ENDLESS, seed=seed, **msgspec.json.decode(config))
