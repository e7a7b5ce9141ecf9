"""One complete weight set in the layout that the decoder multiplies with: q/k/v and gate/up fused.

Guaranteed: a set takes every tensor or none; the check of names, shapes and dtypes comes first. `copy_from` fills
memory of its own. `over` takes the memory of tensors on the CPU as it is wherever what is fused lies there one behind
another, as it does in a published version: one that is mapped serves without a copy. It knows neither version nor
finiteness: who publishes checks that.
"""

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, fields
from math import prod
from types import MappingProxyType

import torch

from streamrl.engines.torch.families import ModelShape, tensor_shapes

ALIGNMENT = 64
"""Bytes: what torch gives memory of its own, so that a kernel takes the same way over both."""
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
NAMES_SHOWN = 3
"""Names listed in an error; the rest is a count, so that a foreign model gives one readable line."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer. Linear weights are [in, out]; a bias, norm or router that the family lacks is None.

    qkv: outputs of q, k and v in this order. qk_norm: [heads + kv_heads, head_dim], the q norm repeated for each
    head, then the k norm. gate_up: outputs of gate, then of up. Of a layer with experts gate_up and down are
    [experts, in, out], and router, of whose outputs each is an expert's, is there.
    """

    input_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    qk_norm: torch.Tensor | None
    output: torch.Tensor
    output_bias: torch.Tensor | None
    post_norm: torch.Tensor
    gate_up: torch.Tensor
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor
    down_bias: torch.Tensor | None
    router: torch.Tensor | None = None

    def tensors(self) -> list[torch.Tensor]:
        """Those that there are."""
        found = (getattr(self, field.name) for field in fields(self))
        return [tensor for tensor in found if tensor is not None]


class FusedWeights:
    """Fused tensors, with a view of them for each Hugging Face name that is to be copied."""

    def __init__(
        self,
        shape: ModelShape,
        dtype: torch.dtype,
        device: torch.device,
        lying: Mapping[str, torch.Tensor] = MappingProxyType({}),
    ) -> None:
        """Room for a set. lying: tensors whose memory is used as it is where the layout allows it; see `over`."""
        self._shape = shape
        self._dtype = dtype
        self._device = device
        self._lying = lying
        self._expected = tensor_shapes(shape)
        self._views: dict[str, torch.Tensor] = {}
        self.embedding = self._joined_rows(["model.embed_tokens.weight"], shape.vocab_size, shape.hidden_size)
        self.final_norm = self._joined_rows(["model.norm.weight"], shape.hidden_size)
        self.head = self.embedding.t()
        if not shape.tied:
            self.head = self._joined_rows(["lm_head.weight"], shape.vocab_size, shape.hidden_size).t()
        self.layers = [self._new_layer(f"model.layers.{index}.") for index in range(shape.num_layers)]
        self._lying = {}

    @classmethod
    def over(cls, shape: ModelShape, dtype: torch.dtype, tensors: Mapping[str, torch.Tensor]) -> "FusedWeights":
        """A set on the CPU that shares the memory of `tensors` where it can, and copies the rest. They must not change
        as long as it is used. Raises as `copy_from` does."""
        check_set(shape, dtype, tensors)
        weights = cls(shape, dtype, torch.device("cpu"), tensors)
        weights._fill(tensors)
        return weights

    @property
    def copied(self) -> Collection[str]:
        """Names of the tensors that lie in memory of the set's own."""
        return self._views.keys()

    def _joined_rows(self, names: Sequence[str], *size: int) -> torch.Tensor:
        """One tensor of the rows of all `names`: where they lie if they lie one behind another, else its own."""
        found = _joined([self._lying[name] for name in names], size) if self._lying else None
        if found is not None:
            return found
        room = self._empty(*size)
        start = 0
        for name in names:
            rows = self._expected[name][0]
            self._views[name] = room[start : start + rows]
            start += rows
        return room

    def _empty(self, *size: int) -> torch.Tensor:
        return torch.empty(size, dtype=self._dtype, device=self._device)

    def _new_layer(self, prefix: str) -> LayerWeights:
        shape, hidden = self._shape, self._shape.hidden_size
        query, key = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        qkv = {"self_attn.q_proj": query, "self_attn.k_proj": key, "self_attn.v_proj": key}
        return LayerWeights(
            self._joined_rows([prefix + "input_layernorm.weight"], hidden),
            *self._linear(prefix, qkv, hidden, shape.qkv_bias),
            self._qk_norm(prefix) if shape.qk_norm else None,
            *self._linear(prefix, {"self_attn.o_proj": hidden}, query, shape.output_bias),
            self._joined_rows([prefix + "post_attention_layernorm.weight"], hidden),
            *(self._experts(prefix) if shape.num_experts else self._mlp(prefix)),
        )

    def _mlp(self, prefix: str) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor | None]:
        shape = self._shape
        inner, hidden = shape.intermediate_size, shape.hidden_size
        gate_up = {"mlp.gate_proj": inner, "mlp.up_proj": inner}
        return (
            *self._linear(prefix, gate_up, hidden, shape.mlp_bias),
            *self._linear(prefix, {"mlp.down_proj": hidden}, inner, shape.mlp_bias),
        )

    def _experts(self, prefix: str) -> tuple[torch.Tensor, None, torch.Tensor, None, torch.Tensor]:
        shape = self._shape
        experts, inner, hidden = shape.num_experts, shape.intermediate_size, shape.hidden_size
        gate_up = self._joined_rows([prefix + "mlp.experts.gate_up_proj"], experts, 2 * inner, hidden)
        down = self._joined_rows([prefix + "mlp.experts.down_proj"], experts, hidden, inner)
        router = self._joined_rows([prefix + "mlp.gate.weight"], experts, hidden)
        return gate_up.mT, None, down.mT, None, router.t()

    def _qk_norm(self, prefix: str) -> torch.Tensor:
        heads = self._shape.num_heads
        norm = self._empty(heads + self._shape.num_kv_heads, self._shape.head_dim)
        self._views[prefix + "self_attn.q_norm.weight"] = norm[:heads]
        self._views[prefix + "self_attn.k_norm.weight"] = norm[heads:]
        return norm

    def _linear(
        self, prefix: str, parts: dict[str, int], columns: int, has_bias: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """One fused linear layer whose outputs are those of `parts`, in order; memory stays [out, in]."""
        rows = sum(parts.values())
        weight = self._joined_rows([f"{prefix}{name}.weight" for name in parts], rows, columns)
        bias = self._joined_rows([f"{prefix}{name}.bias" for name in parts], rows) if has_bias else None
        return weight.t(), bias

    def copy_from(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take a complete set of Hugging Face named tensors. Raises ValueError, and touches nothing, when one is
        missing, unknown, of another shape or dtype, or when a tied head differs from the embedding."""
        check_set(self._shape, self._dtype, tensors)
        self._fill(tensors)

    def overwrite(self, other: "FusedWeights") -> None:
        """Take every number of another set of the same shape, in place."""
        torch._foreach_copy_(self._own(), other._own())

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._own())

    def _own(self) -> list[torch.Tensor]:
        """Each fused tensor once."""
        head = [] if self._shape.tied else [self.head]
        layers = [tensor for layer in self.layers for tensor in layer.tensors()]
        return [self.embedding, self.final_norm, *head, *layers]

    def _fill(self, tensors: Mapping[str, torch.Tensor]) -> None:
        for name, view in self._views.items():
            # A norm of one head is broadcast to all heads by the copy.
            view.copy_(tensors[name])


def product_shapes(shape: ModelShape) -> set[tuple[int, int]]:
    """[inner length, columns] of every fused weight that a pass multiplies with."""
    hidden, query = shape.hidden_size, shape.num_heads * shape.head_dim
    router = {(hidden, shape.num_experts)} if shape.num_experts else set()
    return router | {
        (hidden, query + 2 * shape.num_kv_heads * shape.head_dim),
        (query, hidden),
        (hidden, 2 * shape.intermediate_size),
        (shape.intermediate_size, hidden),
        (hidden, shape.vocab_size),
    }


def check_set(shape: ModelShape, dtype: torch.dtype, tensors: Mapping[str, torch.Tensor]) -> None:
    """Raises ValueError unless it is a complete set of Hugging Face named tensors of that shape and dtype."""
    expected = tensor_shapes(shape)
    check_names(shape.model_type, expected.keys(), tensors.keys(), {HEAD})
    for name, size in expected.items():
        check_tensor(name, tensors[name], size, dtype)
    if shape.tied and HEAD in tensors:
        check_tied_head(tensors[HEAD], tensors[EMBEDDING], HEAD, EMBEDDING)


def check_names(kind: str, expected: Set[str], found: Set[str], optional: Set[str]) -> None:
    """Raises ValueError for names that are missing or unknown. kind: the model's type. optional: may be there."""
    missing = sorted(expected - found)
    unknown = sorted(found - expected - optional)
    for what, names in (("misses", missing), ("has unknown", unknown)):
        if names:
            rest = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
            raise ValueError(
                f"the weight set {what} tensor {', '.join(names[:NAMES_SHOWN])}{rest}; "
                f"a {kind} set has {len(expected)} tensors"
            )


def check_tensor(name: str, tensor: torch.Tensor, size: tuple[int, ...], dtype: torch.dtype) -> None:
    """Raises ValueError for another shape or dtype."""
    if tuple(tensor.shape) != size:
        raise ValueError(f"tensor {name} has shape {tuple(tensor.shape)}, the model needs {size}")
    if tensor.dtype != dtype:
        raise ValueError(f"tensor {name} has dtype {tensor.dtype}, the engine runs in {dtype}")


def check_tied_head(head: torch.Tensor, embedding: torch.Tensor, name: str, other: str) -> None:
    """Raises ValueError where `head`, called `name`, is not equal to the tensor `other` that it is tied to."""
    check_tensor(name, head, tuple(embedding.shape), embedding.dtype)
    if head.data_ptr() != embedding.data_ptr() and not torch.equal(head, embedding):
        raise ValueError(
            f"tensor {name} differs from {other}, but the model ties them: "
            "leave it out, or set tie_word_embeddings = false"
        )


def _joined(parts: Sequence[torch.Tensor], size: tuple[int, ...]) -> torch.Tensor | None:
    """The parts as one tensor over the memory that they lie in, None unless it is the CPU's and they follow each other
    in it without a gap, begun where a kernel's widest load may."""
    first = parts[0]
    if first.device.type != "cpu" or first.data_ptr() % ALIGNMENT:
        return None
    end = first.data_ptr()
    memory = first.untyped_storage().data_ptr()
    for part in parts:
        if part.data_ptr() != end or part.untyped_storage().data_ptr() != memory or not part.is_contiguous():
            return None
        end += part.nbytes
    strides = tuple(prod(size[place + 1 :]) for place in range(len(size)))
    return first.detach().as_strided(size, strides, first.storage_offset())
