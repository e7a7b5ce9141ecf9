"""From verl's backends to ours: FSDP's ranks, or the layout of Megatron. Pure."""

from typing import Final

from streamrl.config.migration.table import Findings, Source
from streamrl.config.migration.verl_table import ACTOR

STRATEGY: Final = f"{ACTOR}.strategy"
MEGATRON: Final = f"{ACTOR}.megatron"
RECOMPUTE: Final = f"{MEGATRON}.override_transformer_config.recompute_granularity"
SIZES: Final = {
    "tensor_model_parallel_size": "tensor_parallel",
    "pipeline_model_parallel_size": "pipeline_parallel",
    "virtual_pipeline_model_parallel_size": "virtual_pipeline",
    "context_parallel_size": "context_parallel",
    "expert_model_parallel_size": "expert_parallel",
    "expert_tensor_parallel_size": "expert_tensor_parallel",
}
_RECOMPUTED = {"full": "layers", "selective": "attention"}
_OURS = "learner.megatron"


def convert_layout(source: Source, found: Findings) -> None:
    """After all else: what is of FSDP alone is taken back where Megatron trains."""
    strategy = source.value(STRATEGY)
    if strategy is None and any(setting.name.startswith(f"{MEGATRON}.") for setting in source):
        strategy = "megatron"
    if strategy in (None, "fsdp", "fsdp2"):
        for name in SIZES:
            if source.count(f"{MEGATRON}.{name}") > 1:
                found.leave(source.setting(f"{MEGATRON}.{name}"), f"{STRATEGY} is not megatron")
        return
    if strategy != "megatron":
        found.leave(source.setting(STRATEGY), 'what trains is FSDP2 or megatron-core: learner.backend = "megatron"')
        return
    told = (STRATEGY,) if source.has(STRATEGY) else tuple(f"{MEGATRON}.{name}" for name in SIZES)
    found.write("learner.backend", "megatron", source.origin(*told))
    for key in [key for key in found.written if key.startswith("learner.execution.")]:
        del found.written[key]
    _sizes(source, found)
    recompute = source.value(RECOMPUTE)
    if recompute in _RECOMPUTED:
        found.write(f"{_OURS}.recompute", _RECOMPUTED[recompute], source.origin(RECOMPUTE))
    if source.value(f"{MEGATRON}.use_distributed_optimizer") is False:
        origin = source.origin(f"{MEGATRON}.use_distributed_optimizer")
        found.write(f"{_OURS}.distributed_optimizer", False, origin)


def _sizes(source: Source, found: Findings) -> None:
    for name, ours in SIZES.items():
        if (size := source.count(f"{MEGATRON}.{name}")) > 1:
            found.write(f"{_OURS}.{ours}", size, source.origin(f"{MEGATRON}.{name}"))
    spread = f"{MEGATRON}.sequence_parallel"
    tensor = f"{MEGATRON}.tensor_model_parallel_size"
    if source.count(tensor) > 1 and source.value(spread) is not False:
        # On by default there, and off with one tensor parallel rank.
        found.write(f"{_OURS}.sequence_parallel", True, source.origin(spread))
