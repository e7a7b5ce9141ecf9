"""One complete weight set under the names that transformers gives the model's parameters.

Guaranteed: a set takes every tensor or none; the check of names, shapes and dtypes comes first. `over` takes the memory
of the tensors as it is.
"""

from collections.abc import Mapping

import torch

from streamrl.engines.torch.weights import check_names, check_tensor, check_tied_head


class NamedWeights:
    """`tensors`: by name, each parameter once. sizes: name to shape of the model. tied: names that are another's
    tensor, with that one's name."""

    def __init__(
        self,
        sizes: Mapping[str, tuple[int, ...]],
        tied: Mapping[str, str],
        dtype: torch.dtype,
        device: torch.device,
        tensors: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        self._sizes, self._tied, self._dtype = sizes, tied, dtype
        if tensors is None:
            tensors = {name: torch.empty(size, dtype=dtype, device=device) for name, size in sizes.items()}
        self.tensors: dict[str, torch.Tensor] = {name: tensors[name] for name in sizes}

    def check(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Raises ValueError unless it is a complete set of this model's tensors; a tied one may be there again."""
        check_names("model", self._sizes.keys(), tensors.keys(), self._tied.keys())
        for name, size in self._sizes.items():
            check_tensor(name, tensors[name], size, self._dtype)
        for name, other in self._tied.items():
            if name in tensors:
                check_tied_head(tensors[name], tensors[other], name, other)

    def copy_from(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take a complete set. Raises as `check`, and touches nothing then."""
        self.check(tensors)
        for name, tensor in self.tensors.items():
            tensor.copy_(tensors[name])

    def overwrite(self, other: "NamedWeights") -> None:
        """Take every number of another set of the same model, in place."""
        torch._foreach_copy_(list(self.tensors.values()), list(other.tensors.values()))

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())
