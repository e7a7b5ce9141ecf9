"""A checkpoint read in full: a folder that is what its manifest says (`manifest`), tensors included, or an error.

Reads only; which checkpoint is taken and which go is not known here.
"""

from pathlib import Path

from safetensors import SafetensorError, safe_open

from streamrl.errors import DataError
from streamrl.learner.checkpoint.manifest import MANIFEST, CheckpointInfo, FileEntry, read_manifest, verify_files


def verify(path: Path) -> CheckpointInfo:
    """Read every byte and compare digests. Raises DataError naming the file."""
    info = read_manifest(path)
    verify_files(info)
    for entry in info.manifest.files:
        _require_tensors(path, entry)
    return info


def _require_tensors(path: Path, entry: FileEntry) -> None:
    try:
        with safe_open(path / entry.name, framework="pt") as file:
            names = set(file.keys())
    except (SafetensorError, OSError, RuntimeError) as error:
        # RuntimeError is what torch makes of a file that is gone: a live run removes its older checkpoints.
        raise DataError(f"checkpoint {path}: {entry.name} cannot be read as a safetensors file: {error}") from error
    if names != set(entry.tensors):
        raise DataError(f"checkpoint {path}: {entry.name} does not hold the tensors that {MANIFEST} lists")
