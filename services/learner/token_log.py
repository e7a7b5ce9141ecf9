"""Keeps what a step's first rows were trained with, token by token, for people who look at rollouts.

Guarantees: a step is trained with the same numbers whether it is kept or not; the files of all ranks stay below
`observe.token_bytes` together. Whole rows are kept, in the order in which they are packed, and at least one. Of ranks
that have the same rows one writes.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from streamrl.config import Config
from streamrl.learner.batch.packing import PackedBatch
from streamrl.learner.parallel.rank_mesh import RowRank
from streamrl.learner.token_watch import TokenWatch
from streamrl.observability.token_figures import StepFigures, line_of
from streamrl.services.learner.step_plan import Share, StepPlan
from streamrl.system.append_file import AppendFile
from streamrl.types import FloatArray, LongArray, RolloutRows

STEP_TOKENS: Final = 16_384
"""Of one step, over all ranks: a few hundred KiB."""

ShareRows = tuple[RolloutRows, Share]
ShareParts = Sequence[Sequence[ShareRows]]
"""Of each mini-batch its shares on this rank."""
SharePacks = Sequence[Sequence[Sequence[PackedBatch]]]
"""Of each of them its packs."""


class _Kept(NamedTuple):
    """Rows of one share: places in it, [n], and targets of each, [n]. columns: float32 [4, k]."""

    share: Share
    rows: LongArray
    tokens: LongArray
    columns: FloatArray


class TokenLog:
    """Example:
    log = TokenLog(folder, config, group.ranks.row_rank(group.rank))
    backend = on_policy(..., watch=log.watch)
    log.begin(packs)
    metrics = backend.step_batch(mini_batches)
    log.write(plan, parts, packs)
    """

    def __init__(self, folder: Path, config: Config, rank: RowRank) -> None:
        """folder: of the figures; made when there is something to keep."""
        self.watch: TokenWatch | None = None
        """What the objective tells; None where nothing is kept."""
        self._bytes = config.observe.token_bytes // rank.data_size
        if not self._bytes or not rank.answers:
            return
        self._most = max(1, STEP_TOKENS // rank.data_size)
        self.watch = TokenWatch(self._most)
        folder.mkdir(exist_ok=True)
        path = folder / f"rank-{rank.data_rank}.jsonl"
        self._file = AppendFile(path, self._bytes)
        self._before = _missing_newline(path)

    def begin(self, packs: SharePacks) -> None:
        """A step of these packs begins."""
        if self.watch is not None:
            self.watch.begin(sum(len(share) for mini_batch in packs for share in mini_batch))

    def write(self, plan: StepPlan, parts: ShareParts, packs: SharePacks) -> None:
        """Keep what was taken of the step. parts: the rows of `packs`."""
        if self.watch is None:
            return
        shares = list(zip((share for _, share in chain(*parts)), chain(*packs), strict=True))
        kept = [*_trained(shares, self.watch.taken(), self._most), *_left_out(shares, self._most)]
        if not kept:
            return
        line = self._before + line_of(_step_figures(plan, kept))
        if len(line) <= self._bytes // 2:
            self._file.append(line)
            self._before = b""


def _trained(
    shares: Sequence[tuple[Share, Sequence[PackedBatch]]], taken: Sequence[FloatArray], most: int
) -> Iterator[_Kept]:
    """The rows of the packs that were taken, up to `most` targets."""
    columns, left = iter(taken), most
    for share, packs in shares:
        for pack in packs:
            found = next(columns, None)
            if found is None or left <= 0:
                return
            offsets = pack.row_offsets()
            fit = int(np.searchsorted(offsets[1:], left, side="right")) or int(left == most)
            yield _Kept(share, pack.rows.numpy()[offsets[:fit]], np.diff(offsets[: fit + 1]), found[:, : offsets[fit]])
            left = left - int(offsets[fit]) if fit == len(offsets) - 1 else 0


def _left_out(shares: Sequence[tuple[Share, Sequence[PackedBatch]]], most: int) -> Iterator[_Kept]:
    """The rows that are in no pack, since their score failed or their advantage is 0; `most` at most."""
    for share, packs in shares:
        packed = [pack.rows.numpy() for pack in packs]
        rows = np.setdiff1d(np.arange(len(share.row)), np.concatenate(packed) if packed else [])[:most]
        most -= len(rows)
        if len(rows):
            yield _Kept(share, rows, np.zeros(len(rows), np.int64), np.zeros((4, 0), np.float32))


def _step_figures(plan: StepPlan, kept: Sequence[_Kept]) -> StepFigures:
    frame_N = np.concatenate([one.share.frame_index[one.rows] for one in kept])
    used, index_N = np.unique(frame_N, return_inverse=True)
    columns = np.concatenate([one.columns for one in kept], axis=1).astype("<f4")
    return StepFigures(
        step=plan.step,
        frames=[(plan.frames[frame].path, plan.frames[frame].offset) for frame in used],
        frame_index=index_N.astype("<i4").tobytes(),
        row=np.concatenate([one.share.row[one.rows] for one in kept]).astype("<i4").tobytes(),
        tokens=np.concatenate([one.tokens for one in kept]).astype("<i4").tobytes(),
        logprobs=columns[0].tobytes(),
        entropies=columns[1].tobytes(),
        advantages=columns[2].tobytes(),
        flags=columns[3].astype(np.uint8).tobytes(),
    )


def _missing_newline(path: Path) -> bytes:
    """What ends the last line of a file, if a killed process left it torn."""
    if not path.exists() or not (size := path.stat().st_size):
        return b""
    with path.open("rb") as file:
        file.seek(size - 1)
        return b"" if file.read(1) == b"\n" else b"\n"
