"""The task of a configuration, and the same measured against its model: what only loading it can show.

Guarantees that a task which comes back measured has prompts that fit, room for them in every buffer, ids that occur
once, and demonstrations where a warm-up wants them. It loads no weights.
"""

from collections.abc import Callable
from pathlib import Path

from streamrl.config.estimates import sizes as limits
from streamrl.config.estimates.capacity import check_capacity
from streamrl.config.estimates.model_of import run_facts
from streamrl.config.problems import ConfigProblems
from streamrl.config.schema.run import Config
from streamrl.errors import ConfigError
from streamrl.models.tokenizer import load_tokenizer
from streamrl.tasks.base import Task, is_demonstrated
from streamrl.tasks.data.task import DataTask
from streamrl.tasks.fitting import fitting_task
from streamrl.tasks.prompts import check_prompts
from streamrl.tasks.resolve import resolve_task

NO_LIMIT = 2**31 - 1


def open_task(config: Config, model: Path, report: Callable[[int], None] = lambda _rows: None) -> Task:
    """What the configuration trains on. model: folder with the tokenizer.

    Prompts of files are prepared where they are not yet; report is told how many rows have been read. Raises
    ConfigError for a task or data that cannot be had."""
    data = config.training_data
    if data is None:
        task = resolve_task(config.task.name, config.task.held_out)
        if config.data.too_long == "error":
            return task
        return fitting_task(task, load_tokenizer(model), prompt_limit(config))
    # Here and not above: what prepares prompts takes a second to import, which a class has no use for.
    from streamrl.tasks.data.cache import open_data

    return open_data(data, model, prompt_limit(config), report)


def prompt_limit(config: Config) -> int:
    """Tokens that a prompt may have: `data.max_prompt_tokens`, and what the context leaves at most."""
    facts, _ = run_facts(config)
    context = (facts.context if facts is not None else None) or NO_LIMIT
    room = context - config.rollout.sampling.max_new_tokens
    return min(room, config.data.max_prompt_tokens or room)


def load_task(config: Config, model: Path, context: int | None = None) -> tuple[Task, int]:
    """The task, and the tokens of its longest prompt, held-out ones included.

    model: folder with the tokenizer. context: tokens that the model takes, as its configuration says where it is None.
    Raises ConfigError for a task that cannot be had, whose prompts do not fit, or that cannot be warmed up on.
    """
    facts, _ = run_facts(config)
    task = open_task(config, model)
    if isinstance(task, DataTask):
        longest = task.longest_tokens  # looked at when they were prepared
    else:
        context = context or (facts.context if facts is not None else None) or NO_LIMIT
        most = min(context - config.rollout.sampling.max_new_tokens, prompt_limit(config))
        longest = check_prompts(task, load_tokenizer(model), most)
    longest = limits.with_submitted(config, longest)
    problems = check_capacity(config, facts, longest)
    if problems:
        raise ConfigProblems(tuple(problems))
    if config.warmup.max_steps and not is_demonstrated(task):
        raise ConfigError(
            f"task {task.name!r} has no demonstrations to warm up on; set warmup.max_steps = 0, or give it a "
            f"{'column: data.columns.demonstration' if isinstance(task, DataTask) else 'method demonstration(prompt)'}"
        )
    return task, longest
