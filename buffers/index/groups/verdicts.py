"""What a verdict must hold before the index takes it. Pure, and a look at all rows of a call at once."""

import numpy as np
import numpy.typing as npt

from streamrl.buffers.rows.records import Records
from streamrl.errors import DataError

Doubles = npt.NDArray[np.float64]


def check_verdicts(
    rows: Records, valid: npt.NDArray[np.bool_], reward: Doubles, components: Doubles | None, names: tuple[str, ...]
) -> None:
    """rows: type SCORED, [N]. valid: bool [N]. reward: float64 [N]. components: float64 [N, C], None without names.

    Raises:
        DataError: a valid score with a reward, or a component, that is not finite; columns that are not those of
            `names`.
    """
    _refuse(valid & ~np.isfinite(reward), rows, "a valid score", reward)
    shape = (len(rows), 0) if components is None else components.shape
    if shape != (len(rows), len(names)):
        raise DataError(f"components of the shape {shape} are told of {len(rows)} verdicts; the queue was told {names}")
    if components is not None:
        for column, name in zip(components.T, names, strict=True):
            _refuse(valid & ~np.isfinite(column), rows, f"a valid score with a component {name!r}", column)


def _refuse(infinite: npt.NDArray[np.bool_], rows: Records, what: str, values: Doubles) -> None:
    if infinite.any():
        place = int(np.argmax(infinite))
        raise DataError(
            f"group {rows['number'][place]}, sample {rows['sample_index'][place]}: {what} of {values[place]}; "
            "a score that is no finite number is a failed one"
        )
