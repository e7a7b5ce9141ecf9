"""Prepares the data of a configuration before a run, or a check, needs it, and says what it found.

Here and not in the run: a large data set takes minutes, which no part of a run waits for.
"""

import sys
from typing import TYPE_CHECKING

from streamrl.config.schema.run import Config
from streamrl.services.launch.tokenizer_folder import tokenizer_folder

if TYPE_CHECKING:
    from streamrl.tasks.data.store import Meta
    from streamrl.tasks.data.task import DataTask


def prepare_data(config: Config) -> "DataTask | None":
    """The prompts of the configuration's data, prepared now where they are not yet; None where a class is the task.

    Tells on standard error how many rows have been read, now and then. Raises ConfigError for data that cannot be
    used."""
    data = config.training_data
    if data is None:
        return None
    # Here and not above: reading files takes Arrow, and most commands read none.
    from streamrl.tasks.data.cache import open_data
    from streamrl.tasks.load import prompt_limit

    with tokenizer_folder(config.model) as folder:
        return open_data(data, folder, prompt_limit(config), _tell)


def told(meta: "Meta") -> list[str]:
    """What was found, a line for each thing that a user wants to know."""
    sets = ", ".join(f"{count} of {name}" for name, count in meta.held_out.items())
    lines = [
        f"data: {sum(meta.train)} prompts to train on, {sets or 'none'} to evaluate on; "
        f"the longest has {meta.longest_tokens} tokens"
    ]
    if meta.too_long:
        lines.append(f'data: rows that are too long and left out (data.too_long = "skip"): {meta.too_long}')
    if meta.num_bad:
        lines.append(f"data: rows that cannot be used and are left out: {meta.num_bad}; the first of them:")
        lines += [f"  {one.source}: row {one.row}: {one.reason}" for one in meta.bad]
    if not meta.held_out:
        lines.append("data: nothing to evaluate on, so the run has no held-out score; set data.eval or data.held_out")
    return lines


def _tell(rows: int) -> None:
    print(f"data: {rows} rows read", file=sys.stderr, flush=True)
