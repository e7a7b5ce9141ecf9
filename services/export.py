"""A run's newest checkpoint as a Hugging Face folder, without the run being up.

Knows the names that the learner gives its weights in a checkpoint, and nothing else of either side. Imports
torch.
"""

from collections.abc import Iterator
from pathlib import Path

import torch

from services.layout import model_folder
from services.run_folder import RunFolder
from streamrl.config import load
from streamrl.errors import RunFolderError
from streamrl.learner.checkpoint import CheckpointInfo, find_newest
from streamrl.models.export import export_hf
from streamrl.models.load import DTYPES

WEIGHT = "model/"


def export_newest(run: RunFolder, to: Path) -> int:
    """Write the newest verified checkpoint's weights to the folder `to`; returns the step they are of.

    Raises RunFolderError when the run has no checkpoint, DataError when the checkpoint is of another model.
    """
    found = find_newest(run.checkpoints_path).newest
    if found is None:
        raise RunFolderError(
            f"run {run.name} has no checkpoint to export yet; the first comes after the warm-up, "
            "then one every checkpoint.every steps"
        )
    config = load(run.config_path)
    weights = _weights(found, DTYPES[config.model.dtype])
    export_hf(weights, model_folder(run.path, config), to)
    return found.version.step


def _weights(found: CheckpointInfo, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
    """Whole weights by their Hugging Face names, in the model's number format, one at a time."""
    for entry in found.manifest.files:
        for name in entry.tensors:
            if name.startswith(WEIGHT):
                yield name.removeprefix(WEIGHT), found.tensor(name).to(dtype)
