"""Numbers as a task: each once, none both trained and held out."""

import json

import pytest

from streamrl.errors import ConfigError
from streamrl.tasks.resolve import resolve_task


def test_each_number_is_trained_or_held_out() -> None:
    task = resolve_task("seeds", 0.1)
    prompts = [*map(task.train, range(task.num_train)), *map(task.held_out, range(task.num_held_out))]
    assert [json.loads(prompt.payload)["seed"] for prompt in prompts] == list(range(10_000))
    assert len({prompt.prompt_id for prompt in prompts}) == 10_000
    assert task.fingerprint() != resolve_task("seeds", 0.2).fingerprint()


def test_no_number_beyond_them() -> None:
    task = resolve_task("seeds", 0.1)
    for get, index in ((task.train, 9000), (task.train, -1), (task.held_out, 1000)):
        with pytest.raises(IndexError):
            get(index)
    with pytest.raises(ConfigError, match="leaves no number"):
        resolve_task("seeds", 1.0)
