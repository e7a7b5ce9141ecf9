"""One complete weight set in the layout that the decoder multiplies with: q/k/v and gate/up fused.

Guaranteed: `copy_from` either takes every tensor or touches none; the check of names, shapes and dtypes comes
first. The set owns its memory, so the caller's tensors may vanish afterwards. It knows neither version nor
finiteness: who publishes checks that.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from streamrl.engines.torch.families import ModelShape, tensor_shapes

NAMES_SHOWN = 3
"""Names listed in an error; the rest is a count, so that a foreign model gives one readable line."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer. Linear weights are [in, out]; a bias or norm that the family lacks is None.

    qkv: outputs of q, k and v in this order. qk_norm: [heads + kv_heads, head_dim], the q norm repeated for each
    head, then the k norm. gate_up: outputs of gate, then of up.
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


class FusedWeights:
    """Preallocated fused tensors, with a view of them for each Hugging Face name."""

    def __init__(self, shape: ModelShape, dtype: torch.dtype, device: torch.device) -> None:
        self._shape = shape
        self._dtype = dtype
        self._device = device
        self._expected = tensor_shapes(shape)
        self._views: dict[str, torch.Tensor] = {}
        self.embedding = self._empty(shape.vocab_size, shape.hidden_size)
        self.final_norm = self._empty(shape.hidden_size)
        head = self.embedding if shape.tied else self._empty(shape.vocab_size, shape.hidden_size)
        self.head = head.t()
        self.layers = [self._new_layer(f"model.layers.{index}.") for index in range(shape.num_layers)]
        self._views["model.embed_tokens.weight"] = self.embedding
        self._views["model.norm.weight"] = self.final_norm
        if not shape.tied:
            self._views["lm_head.weight"] = head

    def _empty(self, *size: int) -> torch.Tensor:
        return torch.empty(size, dtype=self._dtype, device=self._device)

    def _new_layer(self, prefix: str) -> LayerWeights:
        shape, hidden = self._shape, self._shape.hidden_size
        query, key = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        inner = shape.intermediate_size
        qkv = {"self_attn.q_proj": query, "self_attn.k_proj": key, "self_attn.v_proj": key}
        gate_up = {"mlp.gate_proj": inner, "mlp.up_proj": inner}
        return LayerWeights(
            self._norm(prefix + "input_layernorm.weight"),
            *self._linear(prefix, qkv, hidden, shape.qkv_bias),
            self._qk_norm(prefix) if shape.qk_norm else None,
            *self._linear(prefix, {"self_attn.o_proj": hidden}, query, shape.output_bias),
            self._norm(prefix + "post_attention_layernorm.weight"),
            *self._linear(prefix, gate_up, hidden, shape.mlp_bias),
            *self._linear(prefix, {"mlp.down_proj": hidden}, inner, shape.mlp_bias),
        )

    def _norm(self, name: str) -> torch.Tensor:
        self._views[name] = self._empty(self._shape.hidden_size)
        return self._views[name]

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
        weight = self._empty(rows, columns)
        bias = self._empty(rows) if has_bias else None
        start = 0
        for name, size in parts.items():
            self._views[f"{prefix}{name}.weight"] = weight[start : start + size]
            if bias is not None:
                self._views[f"{prefix}{name}.bias"] = bias[start : start + size]
            start += size
        return weight.t(), bias

    def copy_from(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take a complete set of Hugging Face named tensors. Raises ValueError, and touches nothing, when one is
        missing, unknown, of another shape or dtype, or when a tied head differs from the embedding."""
        self._check_names(tensors)
        for name, shape in self._expected.items():
            self._check_tensor(name, tensors[name], shape)
        self._check_tied_head(tensors)
        for name, view in self._views.items():
            # A norm of one head is broadcast to all heads by the copy.
            view.copy_(tensors[name])

    def _check_names(self, tensors: Mapping[str, torch.Tensor]) -> None:
        allowed = self._expected.keys() | {"lm_head.weight"}
        missing = sorted(self._expected.keys() - tensors.keys())
        unknown = sorted(tensors.keys() - allowed)
        for what, names in (("misses", missing), ("has unknown", unknown)):
            if names:
                rest = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
                raise ValueError(
                    f"the weight set {what} tensor {', '.join(names[:NAMES_SHOWN])}{rest}; "
                    f"a {self._shape.model_type} set has {len(self._expected)} tensors"
                )

    def _check_tensor(self, name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
        if tuple(tensor.shape) != shape:
            raise ValueError(f"tensor {name} has shape {tuple(tensor.shape)}, the model needs {shape}")
        if tensor.dtype != self._dtype:
            raise ValueError(f"tensor {name} has dtype {tensor.dtype}, the engine runs in {self._dtype}")

    def _check_tied_head(self, tensors: Mapping[str, torch.Tensor]) -> None:
        head = tensors.get("lm_head.weight")
        if not self._shape.tied or head is None:
            return
        embedding = tensors["model.embed_tokens.weight"]
        self._check_tensor("lm_head.weight", head, tuple(embedding.shape))
        same_memory = head.data_ptr() == embedding.data_ptr()
        if not same_memory and not torch.equal(head, embedding):
            raise ValueError(
                "tensor lm_head.weight differs from model.embed_tokens.weight, but the model ties them: "
                "leave it out, or set tie_word_embeddings = false"
            )
