"""Rows as people and clients are shown them: the tokens of each with their log-probs and versions. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from streamrl.types import TokenOrigin

_COLUMNS = ("token_ids", "token_origin", "rollout_logprobs", "version_spans", "finish_reason", "replica", "stream")


@dataclass(frozen=True, slots=True)
class ShownRow:
    """prompt_ids: before the first sampled token. ids, logprobs, sampled: from there on; log-probs are 0 where not
    sampled. spans: (start, incarnation, step), `start` counted from the first one of `ids`."""

    prompt_ids: list[int]
    ids: list[int]
    logprobs: list[float]
    sampled: list[bool]
    spans: list[tuple[int, int, int]]
    finish_reason: str
    replica: str
    stream: str


def shown_rows(batch: pa.RecordBatch, rows: Sequence[int]) -> list[ShownRow]:
    """These rows of a batch of completions.

    Raises:
        IndexError: a row that it does not have.
    """
    if rows and max(rows) >= batch.num_rows:
        raise IndexError(f"row {max(rows)} of a frame of {batch.num_rows}")
    chosen = batch.select(_COLUMNS).take(pa.array(rows, pa.int64())).to_pylist()
    return [_shown(row) for row in chosen]


def _shown(row: dict[str, list]) -> ShownRow:  # type: ignore[type-arg]
    sampled = np.array(row["token_origin"], np.uint8) == TokenOrigin.SAMPLED
    first = int(np.argmax(sampled)) if sampled.any() else len(sampled)
    return ShownRow(
        prompt_ids=row["token_ids"][:first],
        ids=row["token_ids"][first:],
        logprobs=row["rollout_logprobs"][first:],
        sampled=sampled[first:].tolist(),
        spans=[(span["start"] - first, span["incarnation"], span["step"]) for span in row["version_spans"]],
        finish_reason=str(row["finish_reason"]),
        replica=str(row["replica"]),
        stream=str(row["stream"]),
    )
