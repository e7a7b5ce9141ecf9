"""Tables of the rotary embedding, as transformers' classes compute them, without these classes: to import one takes as
long as all else of an engine's start.
"""

import torch
from transformers import PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS


def rope_tables(
    config: PretrainedConfig, length: int, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin of positions 0..length-1, each [length, head_dim], to the bit those of the model's own rotary class.

    The first half of sin is negated: then `x * cos + swap_halves(x) * sin` is transformers'
    `x * cos + rotate_half(x) * sin`, to the bit, without a negation for each layer.
    """
    frequencies, scale = _frequencies(config)
    angles = torch.arange(length)[:, None].float() * frequencies
    both = torch.cat((angles, angles), dim=-1)
    cos, sin = (both.cos() * scale).to(dtype), (both.sin() * scale).to(dtype)
    half = sin.shape[-1] // 2
    signed = torch.cat((-sin[:, :half], sin[:, half:]), dim=-1)
    return cos.to(device).contiguous(), signed.to(device).contiguous()


def _frequencies(config: PretrainedConfig) -> tuple[torch.Tensor, float]:
    """float32 [head_dim / 2], and what cos and sin are multiplied by."""
    parameters = config.rope_parameters
    if parameters["rope_type"] != "default":
        return ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config)
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 1.0 / (parameters["rope_theta"] ** (torch.arange(0, size, 2, dtype=torch.float) / size)), 1.0
