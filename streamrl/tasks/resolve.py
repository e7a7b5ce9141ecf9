"""From the name in the configuration to a task. Knows the built-in tasks; loads a user's own by
`module:Class`.
"""

from collections.abc import Callable, Mapping
from typing import cast

from streamrl.errors import ConfigError, StreamRLError
from streamrl.plugin import resolve
from streamrl.tasks.arithmetic import ArithmeticTask
from streamrl.tasks.base import Task
from streamrl.tasks.multiplication import MultiplicationTask
from streamrl.tasks.seeds import SeedTask

BUILT_IN: Mapping[str, Callable[[float], Task]] = {
    "arithmetic": ArithmeticTask,
    "multiplication": MultiplicationTask,
    "seeds": SeedTask,
}

REQUIRED = ("name", "num_train", "num_held_out", "train", "held_out", "fingerprint")


def resolve_task(name: str, held_out: float) -> Task:
    """The task called `name`, with the share `held_out` of its items kept from training.

    A class of one's own is called with `held_out` as its only argument. Raises ConfigError for a name that is
    not known, a module that does not import, a class that raises, and an object that is no task.
    """
    make = resolve(name, kind="task", built_in=BUILT_IN)
    if not callable(make):
        raise ConfigError(f"task {name!r} is a {type(make).__name__}, not a class")
    try:
        task = make(held_out)
    except StreamRLError:
        raise
    except Exception as error:  # a user's constructor may raise anything
        raise ConfigError(
            f"task {name!r}: calling it with held_out = {held_out} raised {type(error).__name__}: {error}"
        ) from error
    return _checked(task, name)


def _checked(task: object, name: str) -> Task:
    missing = [member for member in REQUIRED if not hasattr(task, member)]
    if missing:
        raise ConfigError(
            f"task {name!r}: a {type(task).__name__} is no task, it lacks {', '.join(missing)}; "
            "see streamrl.tasks.base.Task"
        )
    found = cast(Task, task)
    if found.num_train < 1:
        raise ConfigError(f"task {name!r}: num_train is {found.num_train}; there is nothing to train on")
    return found
