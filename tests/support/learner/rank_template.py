"""What a rank of a test is forked from: a process that has imported what ranks need and computed nothing yet.

Torch, transformers and the learner take longer to import than most ranks take for all the rest.
"""

import importlib.util
import os
import runpy
import sys

import torch

import streamrl.learner.checkpoint.checkpoint
import streamrl.learner.fsdp
import streamrl.learner.supervised.warmup

if importlib.util.find_spec("megatron.core") is not None:
    import streamrl.learner.megatron.backend  # noqa: F401


def be_rank(argv: list[str], environment: dict[str, str], errors: str) -> None:
    """Run `argv[0]`, a program, with the rest of `argv`; what it says of errors goes to a file."""
    with open(errors, "wb") as file:
        os.dup2(file.fileno(), 2)
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(1)
    sys.argv[:] = argv
    sys.path.insert(0, os.path.dirname(argv[0]))
    runpy.run_path(argv[0], run_name="__main__")
