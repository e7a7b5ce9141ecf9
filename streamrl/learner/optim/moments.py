"""What a checkpoint holds of an optimizer: tensors by kind and parameter, and how they are read back."""

from collections.abc import Callable
from typing import TypeAlias

import torch

MOMENTS = ("exp_avg", "exp_avg_sq")
"""AdamW's tensors for each parameter."""

ReadPart: TypeAlias = Callable[[str, torch.dtype, int], torch.Tensor]
"""(kind, dtype, elements) -> this rank's part of a saved tensor of a parameter, a copy, which has one number for so
many elements of a row. Raises DataError where it was saved in another dtype or shape."""
