"""A version's tensors as a file that a server can read, in a private folder of shared memory, for as long as it does.

Guarantees: nobody else on the machine can read it (mode 0700), and it is gone after the block, whatever happens in it.
Tensors that share their memory (tied embeddings) are written once. It does not know who reads.
"""

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from streamrl.errors import ResourceError

if TYPE_CHECKING:
    import torch

FILE = "model.safetensors"


def write_weights(tensors: "Mapping[str, torch.Tensor]", parent: Path) -> Path:
    """A new folder below `parent` with all of them in one safetensors file. Raises ResourceError when there is no room
    for it; nothing is left then."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    folder = Path(tempfile.mkdtemp(prefix="weights-", dir=parent))  # with mode 0700
    try:
        save_file(_apart(tensors), folder / FILE)
    except (OSError, SafetensorError) as error:
        remove_weights(folder)
        needed = sum(tensor.nbytes for tensor in tensors.values())
        free = shutil.disk_usage(parent).free
        raise ResourceError(
            f"weights: the {needed} bytes that a server is to read cannot be written to {parent}, which has {free} "
            f"free: {error}"
        ) from error
    return folder


def remove_weights(folder: Path) -> None:
    """Nothing happens when it is gone."""
    shutil.rmtree(folder, ignore_errors=True)


def _apart(tensors: "Mapping[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
    """The tensors without those that are another one under a second name; the file's format has no word for that."""
    kept: dict[tuple[int, tuple[int, ...]], str] = {}
    for name, tensor in tensors.items():
        kept.setdefault((tensor.data_ptr(), tuple(tensor.shape)), name)
    return {name: tensors[name].detach().contiguous() for name in kept.values()}
