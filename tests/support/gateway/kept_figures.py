"""Figures of single tokens, as a learner would keep them, for rows that a test names."""

from collections.abc import Sequence

import numpy as np

from streamrl.observability.token_figures import StepFigures

Row = tuple[str, int, int, Sequence[float]]
"""(path, offset, row, log-probs): entropies, advantages and flags follow from these."""


def step_figures(step: int, rows: Sequence[Row]) -> StepFigures:
    frames = list(dict.fromkeys((path, offset) for path, offset, *_ in rows))
    logprobs = np.array([one for *_, values in rows for one in values], "<f4")
    flags = np.array([place % 8 for *_, values in rows for place in range(len(values))], np.uint8)
    return StepFigures(
        step=step,
        frames=frames,
        frame_index=np.array([frames.index((path, offset)) for path, offset, *_ in rows], "<i4").tobytes(),
        row=np.array([row for _, _, row, _ in rows], "<i4").tobytes(),
        tokens=np.array([len(values) for *_, values in rows], "<i4").tobytes(),
        logprobs=logprobs.tobytes(),
        entropies=np.abs(logprobs).tobytes(),
        advantages=(10 * logprobs).tobytes(),
        flags=flags.tobytes(),
    )
