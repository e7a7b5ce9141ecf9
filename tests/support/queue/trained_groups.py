"""What a run was trained on, by its ledger."""

from pathlib import Path

import numpy as np

from streamrl.buffers.recovery.recorded import recorded_leases
from streamrl.config import load
from streamrl.services.queue.actor import queue_settings
from streamrl.tasks.order import PromptOrder
from streamrl.tasks.resolve import resolve_task


def trained_groups(folder: Path) -> list[int]:
    """Numbers of the groups of every committed step, in order."""
    config = load(folder / "config.toml")
    task = resolve_task(config.task.name, config.task.held_out)
    settings = queue_settings(config, task, longest_prompt=7)
    leases = recorded_leases(folder, settings, PromptOrder(task.num_train, config.seed))
    return [int(number) for lease in leases for number in np.unique(lease.group)]
