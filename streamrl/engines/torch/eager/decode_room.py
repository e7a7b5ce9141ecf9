"""Where a step of decode rows puts its numbers: memory of so many rows that is used again and again. Float32 on a CPU.

Why: a step of a small model has some thirty results of a few microseconds each, and to make room for one, and an array
of its memory, takes about as long.
"""

import torch

from streamrl.engines.torch.families import ModelShape
from streamrl.types import FloatArray


class DecodeRoom:
    """Tensors of `kept` rows, of which `rows` decode, and arrays of the same memory.

    hidden [kept, E], normed [kept, E], projected [kept, (H + 2 kv_heads) * D], attended [kept, H * D] with zeros behind
    `rows`, both [kept, 2 I], inner [kept, I], logits [kept, V]. heads: `projected` as [kept, H + 2 kv_heads, D].
    mixed: the decode rows of `attended`, [rows, H, D].
    """

    def __init__(self, shape: ModelShape, rows: int, kept: int) -> None:
        self.rows, self.kept = rows, kept
        heads, inner = shape.num_heads + 2 * shape.num_kv_heads, shape.intermediate_size
        self.hidden, self.hidden_array = _made(kept, shape.hidden_size)
        self.normed, self.normed_array = _made(kept, shape.hidden_size)
        self.projected, projected = _made(kept, heads * shape.head_dim)
        self.heads: FloatArray = projected.reshape(kept, heads, shape.head_dim)
        self.attended, attended = _made(kept, shape.num_heads * shape.head_dim)
        self.mixed: FloatArray = attended[:rows].reshape(rows, shape.num_heads, shape.head_dim)
        self.both, self.both_array = _made(kept, 2 * inner)
        self.inner, self.inner_array = _made(kept, inner)
        self.logits, _ = _made(kept, shape.vocab_size)


def _made(*size: int) -> tuple[torch.Tensor, FloatArray]:
    tensor = torch.zeros(*size)
    return tensor, tensor.numpy()
