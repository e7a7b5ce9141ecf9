"""torch's number formats by their names in the configuration."""

import torch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
