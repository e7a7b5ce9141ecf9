"""The rules of `[data]`."""

import re
from collections.abc import Iterator

from streamrl.config.data_names import names_data
from streamrl.config.problems import Problem
from streamrl.config.schema.data import DataConfig
from streamrl.config.schema.run import Config, TaskConfig
from streamrl.config.toml_text import quoted

COLUMN_ROLES = ("prompt", "answer", "system", "tools", "demonstration")
_MOST_WEIGHT = 1_000_000
_SET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def _one_task(config: Config) -> Iterator[Problem]:
    data, name = config.data, config.task.name
    if data.train is not None and name != TaskConfig().name:
        what = 'two things to train on: set one of data.train and task.name ("none" unsets data.train)'
        yield Problem(key="data.train", what=what, given=quoted(data.train), involves=("task.name",))
    of_any_task = DataConfig(
        too_long=data.too_long, max_prompt_tokens=data.max_prompt_tokens, curriculum=data.curriculum
    )
    if data.train is None and not names_data(name) and data != of_any_task:
        yield Problem(
            key="data", what="no data to train on: set data.train to a file, a glob, a folder or hf:OWNER/NAME"
        )
    if data.train is not None and not all(data.train_addresses):
        yield Problem(key="data.train", what="an address is empty", given=quoted(data.train))


def _weights(config: Config) -> Iterator[Problem]:
    count, weights = len(config.data.train_addresses), config.data.weights
    if weights and len(weights) != count:
        what = f"one weight for each address of data.train: {count}"
        yield Problem(key="data.weights", what=what, given=quoted(weights), involves=("data.train",))
    if weights and max(weights) > _MOST_WEIGHT * min(weights):
        what = f"one is more than {_MOST_WEIGHT:,} times another, whose prompts would hardly ever have a turn"
        yield Problem(key="data.weights", what=what, given=quoted(weights), allowed="numbers nearer to each other")


def _columns(config: Config) -> Iterator[Problem]:
    for role in config.data.columns or {}:
        if role not in COLUMN_ROLES:
            names = ", ".join(COLUMN_ROLES)
            yield Problem(key="data.columns", what="no such part of a row", given=quoted(role), allowed=names)


def _evaluation(config: Config) -> Iterator[Problem]:
    data = config.data
    if data.eval is not None and data.held_out:
        what = "two sources of evaluation: set one of data.eval and data.held_out"
        yield Problem(key="data.held_out", what=what, given=quoted(data.held_out), involves=("data.eval",))
    if data.held_out == 1.0:
        yield Problem(key="data.held_out", what="nothing left to train on", given="1.0", allowed="a number below 1")
    for name, address in data.eval_addresses.items():
        if not _SET_NAME.fullmatch(name):
            what = "no name of a set: 1 to 64 letters, digits, '.', '_' and '-'"
            yield Problem(key="data.eval", what=what, given=quoted(name))
        if not address:
            yield Problem(key="data.eval", what="an address is empty", given=quoted(name))


def _curriculum(config: Config) -> Iterator[Problem]:
    low, high = config.data.curriculum.low, config.data.curriculum.high
    if low is not None and high is not None and low > high:
        what = "every prompt would rest: it is above data.curriculum.high"
        yield Problem(key="data.curriculum.low", what=what, given=str(low), allowed=f"at most {high:g}")


def _samples(config: Config) -> Iterator[Problem]:
    if config.eval.samples > 1 and config.eval.temperature == 0.0:
        what = "greedy completions of one prompt are all the same; set eval.temperature above 0, or eval.samples = 1"
        yield Problem(key="eval.samples", what=what, given=str(config.eval.samples), involves=("eval.temperature",))


DATA_RULES = (_one_task, _weights, _columns, _evaluation, _curriculum, _samples)
