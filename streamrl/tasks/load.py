"""The task of a configuration, measured against its model: what only loading it can show.

Guarantees that a task which comes back has prompts that fit, room for them in every buffer, and demonstrations
where a warm-up wants them. It loads no weights.
"""

from streamrl.config import limits
from streamrl.config.capacity import check_capacity
from streamrl.config.model_of import run_facts
from streamrl.config.problems import ConfigProblems
from streamrl.config.schema import Config
from streamrl.errors import ConfigError
from streamrl.tasks.base import Task, is_demonstrated
from streamrl.tasks.prompts import Encoder, check_prompt_lengths
from streamrl.tasks.resolve import resolve_task

NO_LIMIT = 2**31 - 1


def load_task(config: Config, tokenizer: Encoder, context: int | None = None) -> tuple[Task, int]:
    """The task, and the tokens of its longest prompt, held-out ones included.

    context: tokens that the model takes, as its configuration says where it is None. Raises ConfigError for a
    task that cannot be had, whose prompts do not fit, or that cannot be warmed up on.
    """
    facts, _ = run_facts(config)
    context = context or (facts.context if facts is not None else None) or NO_LIMIT
    task = resolve_task(config.task.name, config.task.held_out)
    longest = check_prompt_lengths(task, tokenizer, context - config.rollout.sampling.max_new_tokens)
    longest = limits.with_submitted(config, longest)
    problems = check_capacity(config, facts, longest)
    if problems:
        raise ConfigProblems(tuple(problems))
    if config.warmup.max_steps and not is_demonstrated(task):
        raise ConfigError(
            f"task {task.name!r} has no demonstrations to warm up on; set warmup.max_steps = 0, or give it a "
            "method demonstration(prompt)"
        )
    return task, longest
