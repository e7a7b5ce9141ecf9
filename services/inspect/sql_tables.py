"""The tables of `streamrl sql`, read from a run folder: completions, scores, rollouts, ledger, steps.

Guarantees: only what a query may name is read (a table that it does not name is there, and empty); the run may be
live, and is never written to. Importing it needs Arrow; `rollouts` needs torch, since advantages and weights are
worked out by the learner's own functions.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamrl.buffers.ledger.facts import NONE, LedgerFacts, ledger_facts
from streamrl.buffers.ledger.ledger import LedgerFile, read_ledger
from streamrl.buffers.ledger.live_files import read_again
from streamrl.buffers.ledger.table import LEDGER, ledger_table
from streamrl.buffers.recovery.row_tables import (
    COMPLETIONS_TABLE,
    ROLLOUTS_TABLE,
    SCORES_TABLE,
    log_table,
    logged_completions,
    logged_scores,
    rollouts_table,
)
from streamrl.buffers.rows.columns import map_columns
from streamrl.buffers.segments.places import LEDGER_DIR
from streamrl.config import Config, load
from streamrl.observability.metrics import read_metrics
from streamrl.services.run.folder import RunFolder
from streamrl.types import FinishReason, LongArray

if TYPE_CHECKING:
    from streamrl.algorithms.advantages.estimate import RewardedRows

TABLES = ("completions", "scores", "rollouts", "ledger", "steps")
_WEIGHTS = {"advantage": pa.float64(), "loss_weight": pa.float64()}
_FIRST = (
    *("prompt_id", "rollout_id", "group_number", "sample_index", "branch", "attempt", "state", "drop_reason"),
    *("prompt_tokens", "sampled_tokens", "oldest_step", "status", "reward", "reason", "step", "staleness"),
    *("advantage", "loss_weight"),
)
"""Columns of `rollouts` that come first, for eyes: from the prompt to the weight in the loss."""


def tables_for(run: RunFolder, query: str, tell: Callable[[str], None]) -> dict[str, pa.Table]:
    """Each of TABLES, by name; with rows where `query` has the name in it, in whatever place.

    tell: takes a line on what is not in them. Raises DataError: damage, with file and offset.
    """
    wanted = {name for name in TABLES if name in query.lower()}
    empty = {
        "completions": COMPLETIONS_TABLE.empty_table(),
        "scores": SCORES_TABLE.empty_table(),
        "rollouts": _weighed(ROLLOUTS_TABLE.empty_table(), np.zeros((2, 0))),
        "ledger": LEDGER.empty_table(),
    }
    tables = {**empty, "steps": steps_table(run.metrics_path, tell if "steps" in wanted else None)}
    if wanted - {"steps"}:
        # Before the segments: what the ledger names is in them by then.
        files = ledger_of(run.path)
        tables |= _row_tables(run, wanted, files, tell)
    return tables


def ledger_of(run_folder: Path) -> list[LedgerFile]:
    """The ledger's files; none before the run has one."""
    folder = run_folder / LEDGER_DIR
    return read_again(partial(read_ledger, folder)) if folder.exists() else []


def steps_table(path: Path, tell: Callable[[str], None] | None = None) -> pa.Table:
    """`metrics.jsonl` with a row a step: lines of one step (its score may come later) are one row. tell: of lines that
    cannot be read."""
    steps: dict[int, dict[str, Any]] = {}
    for line in read_metrics(path, tell):
        steps.setdefault(line["step"], {}).update(line)
    keys = dict.fromkeys(key for row in steps.values() for key in row)
    columns = {key: _column([row.get(key) for row in steps.values()]) for key in keys}
    return pa.table(columns or {"step": pa.array([], pa.int64())})


def _row_tables(
    run: RunFolder, wanted: set[str], files: list[LedgerFile], tell: Callable[[str], None]
) -> dict[str, pa.Table]:
    tables: dict[str, pa.Table] = {}
    if "ledger" in wanted:
        tables["ledger"] = ledger_table(files)
    if wanted <= {"ledger", "steps"}:
        return tables
    facts = ledger_facts(files)
    if wanted & {"completions", "rollouts"}:
        completions = logged_completions(run.path, facts)
        places = completions.places(facts.frames, facts.frame, facts.rows["row"])
        tables["completions"] = log_table(completions, places)
    if wanted & {"scores", "rollouts"}:
        scores = logged_scores(run.path, facts)
        scored = facts.score_frame != NONE
        places = scores.places(facts.score_frames, facts.score_frame[scored], facts.score_row[scored])
        tables["scores"] = log_table(scores, places)
    if "rollouts" in wanted:
        table, elsewhere = rollouts_table(facts, completions, scores)
        if elsewhere:
            tell(f"{elsewhere} accepted rows are not in this run folder (on another node, or let go): not in rollouts")
        tables["rollouts"] = _weighed(table, weights(table, facts, load(run.config_path)))
    return tables


def weights(rollouts: pa.Table, facts: LedgerFacts, config: Config) -> npt.NDArray[np.float64]:
    """float64 [2, N]: advantage, and weight in the loss of each of the row's sampled tokens; NaN where not trained.

    By the function that makes the learner's plan, over the rows of each step; a step of which a row or a verdict is not
    here, or a component that the configuration names now, has none, and neither has a run whose advantages hang on more
    than rewards (`advantages_from_rows_alone`). The correction of the loss for the version that sampled is another
    factor, of each token, and not in it.
    """
    from streamrl.algorithms.advantages.estimate import advantages_from_rows_alone

    found = np.full((2, rollouts.num_rows), np.nan)
    if not advantages_from_rows_alone(config):
        return found
    # In the order of the learner's batches, so that sums are the same to the bit.
    order = np.lexsort([_numbers(rollouts, name) for name in ("branch", "sample_index", "group_number", "step")])
    step = _numbers(rollouts, "step")[order]
    judged = _scored_rows(rollouts, config).at(order)
    lacking = judged.valid_N & np.isnan(judged.components_NC).any(axis=1)
    unscored = rollouts["status"].is_null().to_numpy()[order] | lacking
    trained = facts.trained_step()
    rows_of = np.bincount(trained[trained != NONE])
    for start, end in _runs(step):
        made = int(step[start])
        if made > 0 and rows_of[made - 1] == end - start and not unscored[start:end].any():
            found[:, order[start:end]] = _weights_of_step(judged.at(np.arange(start, end)), config)
    return found


def _scored_rows(rollouts: pa.Table, config: Config) -> "RewardedRows":
    """What the learner's plan is made of. A component that a score lacks is NaN."""
    from streamrl.algorithms.advantages.estimate import RewardedRows

    reward, group, sampled = (rollouts[name].to_numpy() for name in ("reward", "group_number", "sampled_tokens"))
    components = map_columns(rollouts["components"].combine_chunks(), config.learner.algorithm.component_names)
    sample, truncated = _numbers(rollouts, "sample_index"), pc.equal(rollouts["finish_reason"], FinishReason.LENGTH)
    return RewardedRows(reward, ~np.isnan(reward), group, sample, sampled, components, truncated.to_numpy())


def _numbers(table: pa.Table, name: str) -> LongArray:
    """int64 [N], with NONE for null."""
    return table[name].cast(pa.int64()).fill_null(NONE).to_numpy()


def _runs(values: LongArray) -> list[tuple[int, int]]:
    """(start, end) of each run of equal values."""
    starts = np.flatnonzero(np.diff(values, prepend=values[:1] - 1)).tolist()
    return list(pairwise([*starts, len(values)]))


def _weights_of_step(rows: "RewardedRows", config: Config) -> npt.NDArray[np.float64]:
    """float64 [2, N] for the rows of one step."""
    import torch

    from streamrl.algorithms.aggregation import AGGREGATIONS, Denominators
    from streamrl.services.learner.step_plan import trained_batch

    algorithm, batch = config.learner.algorithm, trained_batch(rows, config)
    tokens = torch.from_numpy(np.maximum(rows.tokens_N, 1).astype(np.float32))
    of_token = np.zeros(len(tokens))
    for number, total in enumerate(zip(batch.total_tokens, batch.total_rows, strict=True)):
        here = batch.mini_batch_N == number
        weight = AGGREGATIONS[algorithm.aggregation](tokens, Denominators(*total), algorithm.horizon)
        of_token[here] = weight.numpy()[here]
    trained = batch.counted_N & (rows.tokens_N > 0)
    return np.stack((batch.advantages_N, np.where(trained, batch.advantages_N * of_token, 0.0)))


def _weighed(table: pa.Table, values: npt.NDArray[np.float64]) -> pa.Table:
    for (name, kind), column in zip(_WEIGHTS.items(), values, strict=True):
        table = table.append_column(name, pa.array(column, kind, from_pandas=True))
    return table.select(list(dict.fromkeys([*_FIRST, *table.column_names])))


def _column(values: list[Any]) -> pa.Array:
    """A column of metrics: as numbers, or as text where a key has had both."""
    try:
        return pa.array(values)
    except pa.ArrowException:
        return pa.array([None if value is None else str(value) for value in values])
