"""What it costs to keep figures of single tokens: seconds of it beside those of the step, as the learner does both.

The watch and the line are timed where they are called, since what they take is far below what two runs of a step differ
by.
"""

import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
from report import Report
from transformers import PreTrainedModel

from learner_steps.models import SMALL, make_model, make_rows
from streamrl.config import Config
from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.run import ModelConfig
from streamrl.learner.batch.packing import PackedBatch, pack
from streamrl.learner.batch.rows import count_targets
from streamrl.learner.model.policy import PolicyModel
from streamrl.learner.objectives import policy_loss
from streamrl.learner.parallel.rank_mesh import RankMesh
from streamrl.learner.token_watch import TokenOutcome, TokenWatch
from streamrl.models.load import load_model, prepare_model_folder
from streamrl.services.learner.step_plan import Share, StepPlan
from streamrl.services.learner.token_log import TokenLog
from streamrl.types import FrameRef, RolloutRows

PACK_TOKENS = 4096


class TimedWatch:
    """Adds up what a watch takes."""

    def __init__(self, watch: TokenWatch) -> None:
        self._watch = watch
        self.seconds = 0.0

    def __call__(self, packed: PackedBatch, outcome: TokenOutcome) -> None:
        begun = time.perf_counter()
        self._watch(packed, outcome)
        self.seconds += time.perf_counter() - begun


def measure(report: Report, rounds: int, rows_count: int) -> None:
    """Of the quickstart's model and rows, whose steps are as short as steps get, and of a model of 30M parameters."""
    with tempfile.TemporaryDirectory() as folder:
        tiny = load_model(prepare_model_folder(ModelConfig(preset="tiny-qwen3"), 0, Path(folder) / "model"), "float32")
        short = make_rows(256, tiny.config.vocab_size, mean=24.0, most=48)
        long = make_rows(rows_count, SMALL.vocab_size)
        for name, model, rows in (("quickstart", tiny, short), ("30M parameters", make_model(SMALL), long)):
            found = [_shares(model, rows, Path(folder)) for _ in range(rounds + 1)][1:]
            step, kept = (statistics.median(column) for column in zip(*found, strict=True))
            report.add(f"tokens kept, {name}: forward and backward of a step", step, "s")
            report.add(f"tokens kept, {name}: of it, to keep them", 100 * kept / step, "%", at_most=1)


def _shares(model: PreTrainedModel, rows: RolloutRows, folder: Path) -> tuple[float, float]:
    """(seconds of a step, those of keeping its tokens)."""
    log = TokenLog(folder / "tokens", Config(), RankMesh(1).row_rank(0))
    assert log.watch is not None
    watch, policy, total = TimedWatch(log.watch), PolicyModel(model), count_targets(rows)
    packs = pack(rows, np.ones(rows.num_rows), PACK_TOKENS)
    loss = partial(policy_loss, policy, total=total, algorithm=AlgorithmConfig(), temperature=1.0)
    begun = time.perf_counter()
    log.begin([[packs]])
    for one in packs:
        loss(pack=one, watch=watch)[0].backward()  # type: ignore[arg-type]
    stepped = time.perf_counter()
    log.write(StepPlan(step=0, frames=[FrameRef("queue/a.arrow", 0, 1, 1, 0, 0)]), [[(rows, _share(rows))]], [[packs]])
    written = time.perf_counter()
    return written - begun, watch.seconds + written - stepped


def _share(rows: RolloutRows) -> Share:
    places, nothing = np.arange(rows.num_rows), np.zeros(rows.num_rows)
    return Share(
        place=places,
        frame_index=np.zeros(rows.num_rows, np.int64),
        row=places,
        group=rows.group,
        sample_index=rows.sample_index,
        rewards=nothing,
        valid=rows.valid,
        scored=rows.valid,
        advantages=nothing,
    )
