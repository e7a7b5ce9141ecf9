"""Two-digit addition: `37+85=` is to be continued with `122`. All 10,000 pairs of 0..99.

Which pairs are held out is fixed by a digest of their text, so every run and every machine holds out the same
ones, and a larger share holds out a superset of a smaller one.
"""

from functools import cached_property

import xxhash

from streamrl.errors import ConfigError
from streamrl.ids import prompt_digest
from streamrl.tasks.base import Prompt, digest_prompts

SIDE = 100  # operands are 0..99


class ArithmeticTask:
    """The sums as a task. `held_out` is the share of pairs that are scored and never trained on.

    Held-out prompts come in digest order, so the first n of them are a fair sample. Training prompts come in
    the order of their operands. Raises ConfigError when `held_out` leaves nothing to train on.
    """

    name = "arithmetic"
    longest_text = 3 * len(prompt_digest("", 0)) + len('{"answer":"198"}')
    """Of the sum of two 99s; see `streamrl.tasks.prompts.longest_text`."""

    def __init__(self, held_out: float = 0.1) -> None:
        self.num_held_out = round(held_out * SIDE**2)
        self.num_train = SIDE**2 - self.num_held_out
        if not 0 <= self.num_held_out < SIDE**2:
            raise ConfigError(
                f"task {self.name!r}: held_out = {held_out} leaves no pair to train on; give a share below 1"
            )

    @cached_property
    def _by_digest(self) -> list[int]:
        # When it is asked for: most processes of a run ask for no prompt.
        return sorted(range(SIDE**2), key=lambda pair: (_digest(pair), pair))

    @cached_property
    def _held_out(self) -> list[int]:
        return self._by_digest[: self.num_held_out]

    @cached_property
    def _train(self) -> list[int]:
        return sorted(self._by_digest[self.num_held_out :])

    def train(self, index: int) -> Prompt:
        return self._prompt(self._item(self._train, index))

    def held_out(self, index: int) -> Prompt:
        return self._prompt(self._item(self._held_out, index))

    def demonstration(self, prompt: Prompt) -> str | list[str]:
        return _answer(prompt.text)

    def fingerprint(self) -> str:
        return digest_prompts(map(self._prompt, self._train), map(self._prompt, self._held_out))

    def _item(self, pairs: list[int], index: int) -> int:
        if not 0 <= index < len(pairs):
            raise IndexError(f"task {self.name!r} has no prompt {index}: there are {len(pairs)}")
        return pairs[index]

    def _prompt(self, pair: int) -> Prompt:
        text = _text(pair)
        return Prompt(prompt_digest(text, pair), text, f'{{"answer":"{_answer(text)}"}}')


def operands(pair: int) -> tuple[int, int]:
    """The two numbers of a pair."""
    return divmod(pair, SIDE)


def _text(pair: int) -> str:
    left, right = operands(pair)
    return f"{left}+{right}="


def _answer(text: str) -> str:
    left, right = text.removesuffix("=").split("+")
    return str(int(left) + int(right))


def _digest(pair: int) -> int:
    return xxhash.xxh3_64_intdigest(_text(pair).encode())
