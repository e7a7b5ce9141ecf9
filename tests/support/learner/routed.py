"""A small model with experts, and rollouts that the torch engine samples from it with their routes."""

import numpy as np
import torch
from transformers import PreTrainedModel, Qwen3MoeConfig, Qwen3MoeForCausalLM

from streamrl.engines.torch import TorchEngine
from streamrl.reference import Sample, lay_out
from streamrl.tasks.base import Prompt
from streamrl.types import GenerationRequest, GenerationResult, RolloutRows, SamplingParams, Score, Version

VOCAB, LAYERS, EXPERTS, CHOSEN = 29, 3, 8, 2
GROUPS, SAMPLES = 3, 4


def routed_model(*, undecided: bool = False, seed: int = 0) -> PreTrainedModel:
    """undecided: routers for which experts are all but equal, so that a small change sends tokens elsewhere."""
    sizes = {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": LAYERS}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 128}
    experts = {"num_experts": EXPERTS, "num_experts_per_tok": CHOSEN, "moe_intermediate_size": 16}
    torch.manual_seed(seed)
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes, **heads, **experts, norm_topk_prob=True)).eval()
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0.0, 0.001 if undecided and name.endswith("gate.weight") else 0.3)
    return model


def with_other_routers(model: PreTrainedModel, distance: float) -> PreTrainedModel:
    """The same model with routers that are a little off, as rounding or a version between leaves them."""
    other = Qwen3MoeForCausalLM(model.config).eval()
    other.load_state_dict(model.state_dict())
    noise = torch.Generator().manual_seed(9)
    for name, parameter in other.named_parameters():
        if name.endswith("gate.weight"):
            parameter.data += distance * torch.randn(parameter.shape, generator=noise)
    return other


def requests(new_tokens: int = 10) -> list[GenerationRequest]:
    """Groups with one prompt each; the prompts have different lengths."""
    draw = np.random.default_rng(4)
    prompts = [draw.integers(0, VOCAB, 3 + 6 * group, dtype=np.int32) for group in range(GROUPS)]
    sampling = SamplingParams(max_new_tokens=new_tokens)
    return [
        GenerationRequest(f"{group}/{sample}", prompts[group], 10 * group + sample, sampling, ())
        for group in range(GROUPS)
        for sample in range(SAMPLES)
    ]


def sampled(model: PreTrainedModel, *, slots: int = 16, record_routes: bool = True) -> list[GenerationResult]:
    engine = TorchEngine(model, Version(0, 0), slots=slots, max_length=64, kv_bytes=2**24, record_routes=record_routes)
    return engine.generate(requests())


def routed_rows(model: PreTrainedModel) -> RolloutRows:
    """As the synchronous loop lays them out."""
    asked = requests()
    samples = [
        Sample(int(one.request_id[0]), (0, 0), int(one.request_id[2]), Prompt("p", "", ""), one.prompt_ids, result)
        for one, result in zip(asked, sampled(model), strict=True)
    ]
    return lay_out(0, samples, [Score.ok(float(place % 2)) for place in range(len(samples))])
