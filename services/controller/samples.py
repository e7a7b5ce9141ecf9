"""Rollouts for a person to look at, at the end of a run: the newest ones, as the trackers get them.

Only a run with trackers pays for it: reading rows takes a tokenizer, and Arrow.
"""

import asyncio
from contextlib import closing
from typing import Any

from ray.actor import ActorHandle
from ray.exceptions import RayError

from streamrl.config import Config
from streamrl.errors import StreamRLError
from streamrl.gateway.refusal import Refusal
from streamrl.observability.trackers.base import Cell
from streamrl.services.run.folder import RunFolder
from streamrl.services.run.layout import model_folder

COLUMNS = ("step", "group", "sample", "prompt", "completion", "reward", "advantage", "finish_reason")
MOST_ROWS = 64
LONGEST_TEXT = 8000
"""Characters of a prompt, or of a completion."""


async def newest_samples(
    queue: ActorHandle, run: RunFolder, config: Config, home: ActorHandle | None
) -> list[list[Cell]]:
    """The newest rows that were scored, by COLUMNS; none where they cannot be read."""
    # Here and not above: a run without trackers does without what they import.
    from streamrl.models.tokenizer import load_tokenizer
    from streamrl.services.gateway.training.rows import GatewayRows
    from streamrl.services.gateway.training.samples import SampleService

    try:
        tokenizer = await asyncio.to_thread(load_tokenizer, model_folder(run.path, config))
        with closing(GatewayRows(run.path, tokenizer, home, config.deadlines.tracker_s)) as rows:
            page = await SampleService(queue, rows, tokenizer, config, run.tokens_path).page(MOST_ROWS, "")
    except (StreamRLError, Refusal, RayError, OSError):
        return []
    return [[_cell(sample.get(column)) for column in COLUMNS] for sample in page["samples"]]


def _cell(value: Any) -> Cell:
    return value[:LONGEST_TEXT] if isinstance(value, str) else value
