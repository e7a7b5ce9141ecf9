"""How many programs a kernel with a loop over its work is launched with."""

import torch

PER_PROCESSOR = 4
"""Programs of one multiprocessor: enough to hide memory, few enough that their partial sums are small."""
WITHOUT_GPU = 4


def programs(tiles: int, device: torch.device) -> int:
    """At most one for each tile of the work, one at least."""
    count = WITHOUT_GPU
    if device.type == "cuda":
        count = PER_PROCESSOR * torch.cuda.get_device_properties(device).multi_processor_count
    return max(min(tiles, count), 1)
