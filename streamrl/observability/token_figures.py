"""What the learner found for single tokens of a step: kept for people who look at rollouts. Pure.

One line of JSON for a step of one rank; arrays are little-endian bytes in base64. A row is named by the place where it
lies, so the figures of a row that was trained again, after a resume, are told apart by their step alone. Figures are of
the row's targets, in order: what the learner predicts and trains on. It does not know what a page shows.
"""

from typing import Final, NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from streamrl.errors import DataError
from streamrl.types import FloatArray

T = TypeVar("T")

CLIPPED: Final = 1
"""Flag of a token: a bound of the loss decided."""
TRUNCATED: Final = 2
"""Flag of a token: a bound of the correction decided its weight."""
REJECTED: Final = 4
"""Flag of a token: it was left out of the loss by the rejection."""


class RowFigures(NamedTuple):
    """Of the targets of one row, [k] each; k is 0 for a row that the step left out. logprobs, entropies: nats, float32,
    under the policy at the begin of the step. advantages: float32. flags: uint8."""

    logprobs: FloatArray
    entropies: FloatArray
    advantages: FloatArray
    flags: npt.NDArray[np.uint8]


class StepFigures(msgspec.Struct, frozen=True):
    """Of N rows of a step, with K targets in all. frames: (path, offset) of each frame, as a `FrameRef` has them.
    frame_index, row, tokens: int32 [N], which row of which frame, and how many targets of it follow. logprobs,
    entropies, advantages: float32 [K]. flags: uint8 [K]."""

    step: int
    frames: list[tuple[str, int]]
    frame_index: bytes
    row: bytes
    tokens: bytes
    logprobs: bytes
    entropies: bytes
    advantages: bytes
    flags: bytes

    def of_row(self, path: str, offset: int, row: int) -> RowFigures | None:
        """The figures of row `row` of the frame at this place; None where none are kept of it."""
        if (path, offset) not in self.frames:
            return None
        frame = self.frames.index((path, offset))
        found = np.flatnonzero((self._ints("frame_index") == frame) & (self._ints("row") == row))
        if not len(found):
            return None
        ends = np.cumsum(self._ints("tokens"), dtype=np.int64)
        end = int(ends[found[0]])
        own = slice(end - int(self._ints("tokens")[found[0]]), end)
        logprobs, entropies, advantages = (
            np.frombuffer(content, "<f4")[own] for content in (self.logprobs, self.entropies, self.advantages)
        )
        return RowFigures(logprobs, entropies, advantages, np.frombuffer(self.flags, np.uint8)[own])

    def _ints(self, name: str) -> npt.NDArray[np.int32]:
        return np.frombuffer(getattr(self, name), "<i4")


class _Head(msgspec.Struct, frozen=True):
    step: int


def line_of(figures: StepFigures) -> bytes:
    """With its newline."""
    return msgspec.json.encode(figures) + b"\n"


def step_of(line: bytes) -> int:
    """The step of a line. Raises DataError for one that is none."""
    return _decoded(line, _Head).step


def figures_of(line: bytes) -> StepFigures:
    """The figures of a line. Raises DataError for one that is none, or whose parts do not fit together."""
    figures = _decoded(line, StepFigures)
    rows = {len(figures.frame_index), len(figures.row), len(figures.tokens)}
    targets = {len(figures.logprobs), len(figures.entropies), len(figures.advantages), 4 * len(figures.flags)}
    if len(rows) != 1 or len(targets) != 1 or rows.pop() % 4:
        raise DataError(f"token figures of step {figures.step}: their columns differ in length")
    if int(figures._ints("tokens").sum()) != len(figures.flags):
        raise DataError(f"token figures of step {figures.step}: their rows have another number of tokens")
    return figures


def _decoded(line: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DataError(f"no line of token figures: {error}") from error
