"""The torch engine with the runner of a GPU: on a CPU by direct calls, its kernels by Triton's interpreter."""

from typing import Any

import numpy as np
import pytest
import torch

from streamrl.engines.torch import TorchEngine
from streamrl.engines.torch.paths import FamilyPath


class GraphEngine(TorchEngine):
    """Runs the GPU's kernels on any device."""

    def _choose_path(self, model: Any, compiled: bool) -> FamilyPath:
        path = super()._choose_path(model, compiled)
        assert isinstance(path, FamilyPath)
        path.runs_graphs = True
        return path


DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def _row_knows_its_place() -> bool:
    """Whether numpy's product gives a row other last bits at another place of the matrix."""
    rows = np.random.default_rng(0).standard_normal((64, 64), dtype=np.float32)
    return any(not np.array_equal(np.roll(rows, by, 0) @ rows, np.roll(rows @ rows, by, 0)) for by in range(1, 64))


# A tile of a GPU keeps this promise; the interpreter keeps it where numpy does.
EXACT_ROWS = pytest.mark.skipif(
    DEVICE == "cpu" and _row_knows_its_place(),
    reason="numpy's rows depend on their place here: make test-kernels, or OPENBLAS_CORETYPE=Nehalem",
)
