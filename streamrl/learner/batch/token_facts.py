"""What the correction made of each target of a pack."""

from typing import NamedTuple

import torch


class TokenFacts(NamedTuple):
    """Of each target of a pack, float32 [K]: the age in steps, the weight (0 where rejected), whether the correction's
    bound decided it, whether it was rejected."""

    lags: torch.Tensor
    weights: torch.Tensor
    truncated: torch.Tensor
    rejected: torch.Tensor
