"""Tasks of `reasoning_gym` for the models that are made from nothing, whose vocabulary has digits and signs alone.

The package makes the items and their answers; of the sentence that asks, the expression at its end is kept. It makes
them from a seed, some of them more than once: each is kept once, so that no held-out item is trained on.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from streamrl.errors import ConfigError
from streamrl.tasks.base import Prompt, digest_prompts
from streamrl.types import prompt_digest

SEED = 0
DRAWN = 10_000
"""Items asked of the package."""


class ProceduralTask:
    """Items of a procedural data set as a task; the first of them, which are a fair sample, are held out.

    entries: {question, answer} as `reasoning_gym` has them; a question ends with ": EXPRESSION =". held_out: the share
    of distinct items that is scored and never trained on. Raises ConfigError where that leaves nothing to train on.
    """

    def __init__(self, name: str, entries: Iterable[Mapping[str, Any]], held_out: float) -> None:
        self.name = name
        distinct = {_expression(entry["question"]): str(entry["answer"]) for entry in entries}
        prompts = [_prompt(text, answer, place) for place, (text, answer) in enumerate(distinct.items())]
        count = round(held_out * len(prompts))
        if not 0 <= count < len(prompts):
            raise ConfigError(f"task {name!r}: held_out = {held_out} leaves none of {len(prompts)} items to train on")
        self._held_out, self._train = prompts[:count], prompts[count:]

    @property
    def num_train(self) -> int:
        return len(self._train)

    @property
    def num_held_out(self) -> int:
        return len(self._held_out)

    def train(self, index: int) -> Prompt:
        return self._train[index]

    def held_out(self, index: int) -> Prompt:
        return self._held_out[index]

    def demonstration(self, prompt: Prompt) -> str:
        answer: str = json.loads(prompt.payload)["answer"]
        return answer

    def fingerprint(self) -> str:
        return digest_prompts(self._train, self._held_out)


class ChainSum(ProceduralTask):
    """`chain_sum`: three numbers of one digit, added and subtracted, as in "4 - 9 + 3 ="."""

    def __init__(self, held_out: float) -> None:
        from reasoning_gym import create_dataset  # an extra, and heavy: the class above is tested without it

        sizes = {"min_terms": 3, "max_terms": 3, "min_digits": 1, "max_digits": 1}
        super().__init__("chain_sum", create_dataset("chain_sum", seed=SEED, size=DRAWN, **sizes), held_out)


def _expression(question: str) -> str:
    return question.rpartition(": ")[2]


def _prompt(text: str, answer: str, place: int) -> Prompt:
    return Prompt(prompt_digest(text, place), text, json.dumps({"answer": answer}))
