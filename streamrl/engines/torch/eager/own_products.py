"""Products by a compiled function in a fixed order: what is left where no way of the matrix library keeps rows
independent. Float32 on a CPU."""

import torch
from torch import Tensor

from streamrl.engines.torch.eager import kernels
from streamrl.engines.torch.products import AddedProducts, Rung


class OwnProducts(AddedProducts):
    """A `RowProducts` that asks no library. Its weights are read as they lie in a checkpoint, [O, I]."""

    rung = Rung.OWN
    min_rows = 1

    def linear(self, x_RI: Tensor, weight_IO: Tensor, bias_O: Tensor | None, out: Tensor | None = None) -> Tensor:
        product = torch.empty(x_RI.shape[0], weight_IO.shape[1]) if out is None else out
        kernels.multiply(x_RI.contiguous().numpy(), weight_IO.t().contiguous().numpy(), product.numpy())
        return product if bias_O is None else product.add_(bias_O)
