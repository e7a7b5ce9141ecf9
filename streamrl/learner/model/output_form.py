"""How a model makes logits of its head's products: scaled, and softly capped, as its config.json says.

Guarantees: a model whose logits are made in a way that is not known here is refused when it is loaded: each is asked
for the logits of a few tokens.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import PretrainedConfig, PreTrainedModel

from streamrl.errors import ConfigError
from streamrl.learner.batch.attention_layout import lay_out

TOKENS = 7
FARTHEST = 1e-4
"""Of a log-prob in float32, from the model's own."""
ROWS_AT_ONCE = 256


class OutputForm(NamedTuple):
    """logits = cap * tanh(scale * product / cap), or without the cap scale * product."""

    scale: float = 1.0
    cap: float | None = None


def output_form(config: PretrainedConfig) -> OutputForm:
    """Of the text model of a configuration: Granite divides by `logits_scaling`, Cohere multiplies by `logit_scale`,
    Gemma caps by `final_logit_softcapping`."""
    text = config.get_text_config()
    scale = float(getattr(text, "logit_scale", None) or 1.0) / float(getattr(text, "logits_scaling", None) or 1.0)
    cap = getattr(text, "final_logit_softcapping", None)
    return OutputForm(scale, float(cap) if cap else None)


def capped_logprobs(
    hidden_KH: torch.Tensor,
    weight_VH: torch.Tensor,
    bias_V: torch.Tensor | None,
    targets_K: torch.Tensor,
    temperature: float,
    cap: float,
    entropy_gradient: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `token_logprobs`, of logits that are capped. ROWS_AT_ONCE rows of them exist at a time, made again in the
    backward."""
    parts = [
        checkpoint(_capped, hidden, weight_VH, bias_V, targets, temperature, cap, entropy_gradient, use_reentrant=False)
        for hidden, targets in zip(hidden_KH.split(ROWS_AT_ONCE), targets_K.split(ROWS_AT_ONCE), strict=True)
    ]
    logprobs, entropies = zip(*parts, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


def _capped(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    temperature: float,
    cap: float,
    entropy_gradient: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = cap * torch.tanh(F.linear(hidden, weight, bias).float() / cap) / temperature
    logprobs = F.log_softmax(logits, dim=-1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy = -(logprobs.exp() * logprobs).sum(-1)
    return -F.nll_loss(logprobs, targets, reduction="none"), entropy


@torch.no_grad()
def require_own_logits(model: PreTrainedModel, form: OutputForm) -> None:
    """Raise ConfigError for a model, attached to packed attention, whose logits are not those of `form`. Only float32
    is looked at."""
    head: nn.Module = model.get_output_embeddings()
    parameter = next(model.parameters())
    if parameter.dtype is not torch.float32 or parameter.is_meta:
        return
    ids = torch.arange(3, 3 + TOKENS, device=parameter.device)[None] % len(head.weight)  # type: ignore[arg-type]
    lengths = torch.tensor([TOKENS]).numpy()
    arguments = {
        "input_ids": ids,
        "position_ids": torch.arange(TOKENS, device=parameter.device)[None],
        "attention_mask": None,
        "use_cache": False,
        "segments": lay_out(lengths).to(parameter.device),
    }
    own = torch.log_softmax(model(**arguments).logits[0], -1)
    hidden = model.base_model(**arguments).last_hidden_state[0] * form.scale
    logits = F.linear(hidden, head.weight, getattr(head, "bias", None))  # type: ignore[arg-type]
    ours = torch.log_softmax(logits if form.cap is None else form.cap * torch.tanh(logits / form.cap), -1)
    farthest = float((own - ours).abs().max())
    if not farthest <= FARTHEST:
        raise ConfigError(
            f"the learner cannot train models of type {model.config.model_type!r}: their logits are not the scaled and "
            f"capped product of hidden states and head (log-probs are {farthest:.2g} off); use another model"
        )
