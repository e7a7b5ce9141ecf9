"""What the process of an actor is told by its environment: how many threads, and where the user's modules are.

Ray runs actors in an empty folder, so that a user's `services/` cannot shadow ours. Tasks and rewards of the user's own
(`module:name`) are looked for in the folder in which `streamrl up` was called, after everything else.
"""

import os
import sys

from streamrl.system.processor import strict_variables

IMPORT_PATH = "STREAMRL_IMPORT_PATH"


def variables(threads: int, import_path: str, strict: bool = False) -> dict[str, str]:
    """The environment of an actor that computes with `threads` threads. strict: rows are to be independent of each
    other, in the engine and, so that both come to equal bits, in the learner."""
    return {
        **(strict_variables(os.environ) if strict else {}),
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
        # Tensors of a step are freed and made again at once: giving their pages back each time costs a tenth of it.
        "MALLOC_TRIM_THRESHOLD_": str(2**28),
        "MALLOC_MMAP_THRESHOLD_": str(2**25),
        IMPORT_PATH: import_path,
    }


def import_path() -> str:
    """The folder of the user's modules, as this process was told; the current one when it was not."""
    return os.environ.get(IMPORT_PATH, os.getcwd())


def extend_import_path() -> None:
    """Let this process find the user's modules, behind all others."""
    if import_path() not in sys.path:
        sys.path.append(import_path())
