"""Products by a compiled function in a fixed order: what is left where no way of the matrix library keeps rows
independent. Float32 on a CPU."""

import torch

from streamrl.engines.torch.eager import kernels
from streamrl.engines.torch.products import Rung


class OwnProducts:
    """A `RowProducts` that asks no library. Its weights are read as they lie in a checkpoint, [O, I]."""

    rung = Rung.OWN
    min_rows = 1

    def linear(
        self,
        x_RI: torch.Tensor,
        weight_IO: torch.Tensor,
        bias_O: torch.Tensor | None,
        *,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        product = torch.empty(x_RI.shape[0], weight_IO.shape[1]) if out is None else out
        kernels.multiply(x_RI.contiguous().numpy(), weight_IO.t().contiguous().numpy(), product.numpy())
        return product if bias_O is None else product.add_(bias_O)

    def add_linear(
        self,
        x_RO: torch.Tensor,
        inner_RI: torch.Tensor,
        weight_IO: torch.Tensor,
        bias_O: torch.Tensor | None,
        *,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return torch.add(x_RO, self.linear(inner_RI, weight_IO, bias_O), out=out)
