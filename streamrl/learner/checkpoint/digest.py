"""One digest for a whole set of weights: equal if and only if names, shapes, dtypes and bytes are equal."""

from collections.abc import Iterable

import torch
import xxhash


def tensor_digest(tensor: torch.Tensor) -> str:
    """XXH3-128 of dtype, shape and bytes, 32 hex digits."""
    raw = tensor.detach().contiguous().cpu().flatten().view(torch.uint8).numpy()
    digest = xxhash.xxh3_128(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    digest.update(raw)
    return digest.hexdigest()


def weight_digest(tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    """XXH3-128 over the tensors' digests in name order, 32 hex digits. The order of `tensors` has no part,
    and one tensor at a time is looked at."""
    digests = sorted((name, tensor_digest(tensor)) for name, tensor in tensors)
    return xxhash.xxh3_128_hexdigest("\n".join(f"{name} {digest}" for name, digest in digests).encode())
