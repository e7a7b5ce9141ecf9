"""The layouts that are compared with one process, each with a family for which it has something of its own."""

from dataclasses import dataclass, field
from typing import Any

from streamrl.config.schema.learner import MegatronConfig


@dataclass(frozen=True)
class Case:
    """sizes: of the model, where they are not the usual ones. routed: rows have routes, which are replayed, and experts
    are balanced."""

    world: int
    family: str
    megatron: MegatronConfig
    sizes: dict[str, Any] = field(default_factory=dict)
    routed: bool = False


TIED = {"tie_word_embeddings": True}


def _case(world: int, family: str, sizes: dict[str, Any] | None = None, *, routed: bool = False, **layout: Any) -> Case:
    return Case(world, family, MegatronConfig(**{"distributed_optimizer": False, **layout}), sizes or {}, routed)


CASES: dict[str, Case] = {
    "llama": _case(1, "llama"),
    "llama_tied": _case(1, "llama", TIED),
    "qwen2": _case(1, "qwen2", distributed_optimizer=True),
    "qwen2_tied": _case(1, "qwen2", TIED),
    "qwen3": _case(1, "qwen3"),
    "qwen3_moe": _case(1, "qwen3_moe"),
    "qwen3_moe_weights_below_1": _case(1, "qwen3_moe", {"norm_topk_prob": False}),
    "mixtral": _case(1, "mixtral"),
    "recompute_attention": _case(1, "qwen3", recompute="attention"),
    "recompute_layers": _case(1, "qwen3", recompute="layers"),
    "added_family": _case(1, "phi3"),
    "routed": _case(1, "qwen3_moe", routed=True),
    "routed_weights_below_1": _case(1, "qwen3_moe", {"norm_topk_prob": False}, routed=True),
    "routed_recompute_layers": _case(1, "mixtral", routed=True, recompute="layers"),
    "tensor_2_added_family": _case(2, "phi3", tensor_parallel=2),
    "tensor_2": _case(2, "qwen3", tensor_parallel=2),
    "tensor_2_tied": _case(2, "qwen2", TIED, tensor_parallel=2),
    "tensor_2_llama": _case(2, "llama", tensor_parallel=2, distributed_optimizer=True),
    "tensor_2_sequence": _case(2, "qwen3", tensor_parallel=2, sequence_parallel=True),
    "pipeline_2": _case(2, "qwen3", pipeline_parallel=2),
    "pipeline_2_tied": _case(2, "qwen2", TIED, pipeline_parallel=2),
    "pipeline_2_interleaved": _case(2, "llama", TIED, pipeline_parallel=2, virtual_pipeline=2),
    "pipeline_2_experts": _case(2, "mixtral", pipeline_parallel=2),
    "data_2": _case(2, "qwen3"),
    "data_2_distributed_optimizer": _case(2, "qwen2", distributed_optimizer=True),
    "expert_2": _case(2, "qwen3_moe", expert_parallel=2),
    "expert_2_distributed_optimizer": _case(2, "mixtral", expert_parallel=2, distributed_optimizer=True),
    "tensor_2_expert_2": _case(2, "qwen3_moe", tensor_parallel=2, sequence_parallel=True, expert_parallel=2),
    "tensor_2_expert_tensor_2": _case(
        2, "mixtral", tensor_parallel=2, sequence_parallel=True, expert_tensor_parallel=2, distributed_optimizer=True
    ),
    "tensor_2_whole_experts": _case(
        2, "mixtral", tensor_parallel=2, sequence_parallel=True, distributed_optimizer=True
    ),
    "tensor_2_routed": _case(2, "qwen3_moe", routed=True, tensor_parallel=2, sequence_parallel=True),
    "pipeline_2_routed_recompute": _case(2, "mixtral", routed=True, pipeline_parallel=2, recompute="layers"),
    "pipeline_2_interleaved_routed": _case(2, "qwen3_moe", routed=True, pipeline_parallel=2, virtual_pipeline=2),
    "expert_2_routed": _case(2, "qwen3_moe", routed=True, expert_parallel=2),
    "context_2": _case(2, "qwen3", context_parallel=2),
    "context_2_tied": _case(2, "qwen2", TIED, context_parallel=2, distributed_optimizer=True),
    "context_2_recompute_layers": _case(2, "llama", context_parallel=2, recompute="layers"),
    "context_2_routed": _case(2, "qwen3_moe", routed=True, context_parallel=2, expert_parallel=2),
    "tensor_2_context_2": _case(4, "qwen3", tensor_parallel=2, sequence_parallel=True, context_parallel=2),
    "context_2_pipeline_2_interleaved": _case(
        4, "llama", TIED, context_parallel=2, pipeline_parallel=2, virtual_pipeline=2
    ),
    "context_2_data_2": _case(4, "mixtral", routed=True, context_parallel=2, distributed_optimizer=True),
    "tensor_2_pipeline_2": _case(4, "qwen2", TIED, tensor_parallel=2, pipeline_parallel=2),
    "tensor_2_data_2": _case(4, "qwen3", tensor_parallel=2, distributed_optimizer=True),
    "tensor_2_data_2_routed": _case(
        4, "qwen3_moe", routed=True, tensor_parallel=2, sequence_parallel=True, distributed_optimizer=True
    ),
    "expert_2_data_2": _case(4, "qwen3_moe", expert_parallel=2, distributed_optimizer=True),
    "expert_2_pipeline_2": _case(4, "mixtral", routed=True, expert_parallel=2, pipeline_parallel=2),
}
"""Also what facts say refuses a CPU: with norms of our own, tokens are spread over tensor ranks there, too."""


def cases_of(world: int) -> dict[str, Case]:
    return {name: case for name, case in CASES.items() if case.world == world}
