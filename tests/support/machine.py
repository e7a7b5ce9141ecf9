"""The machine of a test run in one line: what is red on one machine can be told from what is red on all."""

import os
import platform

import psutil
import torch

from streamrl.engines.torch.ladder import Ladder
from streamrl.system.processor import processor

SHAPES = [(64, 192), (64, 512), (256, 64), (176, 320)]
"""Of weights as the tests' models have them."""


def machine_line() -> str:
    """Processor, cores, memory, kernel, and how rows are multiplied."""
    cores, memory = len(os.sched_getaffinity(0)), psutil.virtual_memory().total / 2**30
    arithmetic = Ladder(SHAPES, torch.float32, torch.device("cpu")).arithmetic
    return (
        f"machine: {processor()}, {cores} cores, {memory:.0f} GiB, {platform.system()} {platform.release()}, "
        f"torch {torch.__version__} with {torch.backends.cpu.get_cpu_capability()}; "
        f"products of rows: {arithmetic.rung}, {arithmetic.why}"
    )
