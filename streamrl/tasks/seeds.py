"""Numbers, for environments that make their own questions: each episode is given another one as `seed`."""

import xxhash

from streamrl.errors import ConfigError
from streamrl.ids import prompt_digest
from streamrl.tasks.base import Prompt

COUNT = 10_000


class SeedTask:
    """The numbers from 0 to 9,999. `held_out` is the share, from the end, that is scored and never trained on.

    Raises ConfigError when `held_out` leaves nothing to train on."""

    name = "seeds"

    def __init__(self, held_out: float = 0.1) -> None:
        self.num_held_out = round(held_out * COUNT)
        self.num_train = COUNT - self.num_held_out
        if self.num_train < 1:
            raise ConfigError(f"task 'seeds': held_out = {held_out} leaves no number to train on; give a share below 1")

    def train(self, index: int) -> Prompt:
        if not 0 <= index < self.num_train:
            raise IndexError(f"task 'seeds' has no prompt {index}: there are {self.num_train}")
        return _prompt(index)

    def held_out(self, index: int) -> Prompt:
        if not 0 <= index < self.num_held_out:
            raise IndexError(f"task 'seeds' has no held-out prompt {index}: there are {self.num_held_out}")
        return _prompt(self.num_train + index)

    def fingerprint(self) -> str:
        return xxhash.xxh3_64_hexdigest(f"seeds {self.num_train}".encode())


def _prompt(number: int) -> Prompt:
    return Prompt(prompt_digest("seed", number), str(number), f'{{"seed":{number}}}')
