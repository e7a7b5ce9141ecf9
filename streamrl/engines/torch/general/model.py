"""A decoder of transformers without weights of its own, which attends by a function of ours.

Guaranteed: what is computed is the model's own code, but for attention: norms, rotary embeddings, experts, caps and
scales of the logits, convolutions and recurrences, which a function of ours gives the rows and states that they want. A
model that mixes tokens in a way that is neither is refused.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
)

from streamrl.engines.torch.general.attention import Form
from streamrl.engines.torch.general.cache import LayerSize, ModelSizes
from streamrl.engines.torch.general.states import Key, RowStates, StateSize
from streamrl.engines.torch.general.weights import NamedWeights
from streamrl.errors import ConfigError
from streamrl.models.mixers import Mix, mixers_of, replace_forward

NAME = "streamrl_cached"
Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor, Form], torch.Tensor]
"""(layer, query [T, heads, D], key [T, kv_heads, D], value [T, kv_heads, E], form) to [T, heads, E]."""
MixTokens = Callable[[int, Mix, torch.Tensor], torch.Tensor]
"""(number of the module, its own forward, hidden [1, T, H]) to [1, T, H]."""
WAY_OUT = 'take another model, or sample by rollout.engine = "vllm" or "sglang"'


class GeneralModel:
    """See the module. model: with or without weights; it is not changed. Raises ConfigError for one that cannot run."""

    def __init__(self, model: PreTrainedModel | PretrainedConfig, dtype: torch.dtype, device: torch.device) -> None:
        self._module = _without_weights(model).eval()
        self.kind = self._module.config.model_type
        self._places, self.sizes, self.tied = _parameters(self._module)
        self._dtype, self._device = dtype, device
        self._bound: NamedWeights | None = None
        self._mixing: MixTokens | None = None
        mixers = mixers_of(self._module.base_model)
        self._num_mixers = len(mixers)
        for number, module in enumerate(mixers):
            replace_forward(module, partial(self._mix, number))
        for module in self._module.modules():
            for name, buffer in module.named_buffers(recurse=False):
                module._buffers[name] = buffer.to(device)
        AttentionInterface.register(NAME, _attention)
        AttentionMaskInterface.register(NAME, _no_mask)
        try:
            self._module.set_attn_implementation(NAME)
        except ValueError as error:
            raise self._refused(f"its attention cannot be replaced: {error}") from error

    def new_weights(self) -> NamedWeights:
        return NamedWeights(self.sizes, self.tied, self._dtype, self._device)

    def weights_over(self, tensors: Any) -> NamedWeights:
        """A set in the memory of `tensors`, which must not change while it is used. Raises ValueError."""
        weights = NamedWeights(self.sizes, self.tied, self._dtype, self._device, _meta(self.sizes, self._dtype))
        weights.check(tensors)
        return NamedWeights(self.sizes, self.tied, self._dtype, self._device, tensors)

    def products(self) -> set[tuple[int, int]]:
        """[inner length, columns] of every linear layer."""
        linears = [module for module in self._module.modules() if isinstance(module, nn.Linear)]
        return {(one.in_features, one.out_features) for one in linears}

    def run_experts(self, *, apart: bool) -> None:
        """apart: one expert's rows after the other's, by linear layers like all others; else as transformers finds
        best, which multiplies them in groups."""
        if self._module._can_set_experts_implementation():
            self._module.set_experts_implementation("eager" if apart else None)

    def logits(
        self,
        weights: NamedWeights,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        keep: torch.Tensor,
        attend: Attend,
        mix: MixTokens,
    ) -> torch.Tensor:
        """float32 [K, vocab] of K among T packed tokens (int64 [T]); keep: int64 [K], their places."""
        self._bind(weights)
        self._mixing = mix
        arguments = {
            "input_ids": token_ids[None],
            "position_ids": positions[None],
            "use_cache": False,
            "attend": attend,
        }
        if not len(keep):
            self._module.base_model(**arguments)
            return torch.empty(0, 0, device=token_ids.device)
        logits: torch.Tensor = self._module(**arguments, logits_to_keep=keep).logits[0]
        return logits.float()

    def plain_logits(self, weights: NamedWeights, token_ids: torch.Tensor) -> torch.Tensor:
        """float32 [T, vocab] of one text (int64 [T]), by transformers' own attention."""
        self._bind(weights)
        self._mixing = None
        self._module.set_attn_implementation("eager")
        try:
            logits: torch.Tensor = self._module(input_ids=token_ids[None], use_cache=False).logits[0]
        finally:
            self._module.set_attn_implementation(NAME)
        return logits.float()

    def layer_sizes(self, weights: NamedWeights) -> ModelSizes:
        """Of what each layer keeps, as one token shows it. Raises ConfigError for a layer that attends more than once,
        or that does nothing with other tokens while no module of the model mixes them outside of attention."""
        found: dict[int, LayerSize] = {}
        states: dict[int, dict[Key, StateSize]] = {}
        calls = 0

        def attend(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, form: Form) -> torch.Tensor:
            nonlocal calls
            calls += 1
            found[layer] = LayerSize(key.shape[1], key.shape[2], value.shape[2])
            return query.new_zeros(*query.shape[:2], value.shape[2])

        def mix_states(number: int, own: Mix, hidden: torch.Tensor) -> torch.Tensor:
            rows = RowStates()
            mixed = own(hidden, cache=rows)
            states[number] = {key: StateSize(tuple(one.shape[1:]), one.dtype) for key, one in rows.states.items()}
            return mixed

        token = torch.zeros(1, dtype=torch.long, device=self._device)
        try:
            self.logits(weights, token, token, token, attend, mix_states)
        except (ValueError, TypeError, RuntimeError, AttributeError, IndexError, KeyError) as error:
            raise self._refused(str(error)) from error
        layers = self._module.config.get_text_config().num_hidden_layers
        if calls != len(found) or (len(found) != layers and not states) or len(states) != self._num_mixers:
            raise self._refused(f"{calls} calls of attention in {layers} layers: it mixes tokens in another way, too")
        nothing = LayerSize(0, 0, 0)
        last = max([layers - 1, *found])
        return ModelSizes([found.get(layer, nothing) for layer in range(last + 1)], [states[n] for n in sorted(states)])

    def _refused(self, why: str) -> ConfigError:
        return ConfigError(f"the torch engine cannot run models of type {self.kind!r}: {why}; {WAY_OUT}")

    def _mix(self, number: int, own: Mix, hidden: torch.Tensor) -> torch.Tensor:
        return own(hidden) if self._mixing is None else self._mixing(number, own, hidden)

    def _bind(self, weights: NamedWeights) -> None:
        """Have the modules compute with a set."""
        if weights is self._bound:
            return
        for module, leaf, name in self._places:
            module._parameters[leaf] = weights.tensors[name]  # type: ignore[assignment]
        self._bound = weights


def steady_length(config: PretrainedConfig) -> int:
    """Tokens up to which rotary embeddings do not depend on what else is in a call: `longrope` takes other frequencies
    for all of it as soon as one text is longer than the model first was."""
    rope = getattr(config, "rope_parameters", None) or {}
    forms = rope.values() if rope and all(isinstance(form, dict) for form in rope.values()) else [rope]
    known = [form.get("original_max_position_embeddings") for form in forms if form.get("rope_type") == "longrope"]
    original = getattr(config, "original_max_position_embeddings", None)
    return min([int(length or original or 0) for length in known], default=2**62)


def _without_weights(model: PreTrainedModel | PretrainedConfig) -> PreTrainedModel:
    """A copy with its buffers and without its weights."""
    if isinstance(model, PretrainedConfig):
        with torch.random.fork_rng(devices=[]):
            made: PreTrainedModel = AutoModelForCausalLM.from_config(model)
    else:
        made = model
    meta = {
        id(parameter): nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=False)
        for parameter in made.parameters()
    }
    return copy.deepcopy(made, meta)


def _parameters(
    module: nn.Module,
) -> tuple[list[tuple[nn.Module, str, str]], dict[str, tuple[int, ...]], dict[str, str]]:
    """Where each parameter lies, with the name of its tensor; the shape of each tensor; names of those that are
    another's."""
    first: dict[int, str] = {}
    places, sizes, tied = [], {}, {}
    for prefix, one in module.named_modules():
        for leaf, parameter in one.named_parameters(recurse=False, remove_duplicate=False):
            name = f"{prefix}.{leaf}" if prefix else leaf
            known = first.setdefault(id(parameter), name)
            if known == name:
                sizes[name] = tuple(parameter.shape)
            else:
                tied[name] = known
            places.append((one, leaf, known))
    return places, sizes, tied


def _meta(sizes: dict[str, tuple[int, ...]], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    return {name: torch.empty(size, dtype=dtype, device="meta") for name, size in sizes.items()}


def _no_mask(*_args: object, **_kwargs: object) -> None:
    return None


def _attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    attend: Attend | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_kwargs: object,
) -> tuple[torch.Tensor, None]:
    """As transformers calls it: [1, heads, T, D]; returns [1, T, heads, E]."""
    if attend is None or attention_mask is not None:
        raise ValueError("the model does not hand its arguments on to its attention, or makes a mask of its own")
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))
    form = Form(scale, sliding_window, softcap, s_aux)
    return attend(int(module.layer_idx), query, key, value, form)[None], None  # type: ignore[arg-type]
