"""A layer spread over several ranks (tensor parallelism), in two dimensions with FSDP2.

Guarantees: the ranks of a tensor group see the same rows and leave the same gradients; each holds its part of the
attention heads and of the MLP (Shoeybi et al. 2019), and whole embeddings, norms and output layer. Attention over packs
works on the heads that are here, without knowing of the others. Qwen2, Qwen3 and Llama.
"""

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformers import PretrainedConfig

from streamrl.errors import ConfigError

COLUMNS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
"""Linear layers whose outputs are spread."""
ROWS = ("self_attn.o_proj", "mlp.down_proj")
"""Linear layers whose inputs are; their outputs are summed over the group."""
OF_HEADS = ("self_attn.q_norm.weight", "self_attn.k_norm.weight")
"""Parameters of all heads that each rank has a gradient of for its own heads only."""


def require_divisible(config: PretrainedConfig, tensor_size: int, shard_size: int) -> None:
    """Raise ConfigError for a model whose parts are not equal over such a mesh."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    for name, count in (
        ("num_attention_heads", config.num_attention_heads),
        ("num_key_value_heads", config.num_key_value_heads),
        ("intermediate_size", config.intermediate_size),
    ):
        if count % tensor_size:
            raise ConfigError(
                f"learner.tensor_parallel = {tensor_size} does not divide the model's {name} = {count}; set a divisor"
            )
    # Rows of a column-parallel weight are cut twice, and the pieces of the second cut must be equal.
    for name, rows in (
        ("key", config.num_key_value_heads * head_dim // tensor_size),
        ("query", config.num_attention_heads * head_dim // tensor_size),
        ("intermediate_size", config.intermediate_size // tensor_size),
        ("hidden_size", config.hidden_size),
    ):
        if rows % shard_size:
            raise ConfigError(
                f"the {rows} rows of {name} that a rank has under learner.tensor_parallel = {tensor_size} are not a "
                f"multiple of the {shard_size} ranks that share them; set another learner.num_workers"
            )


def spread(layer: nn.Module, mesh: DeviceMesh) -> None:
    """Spread one decoder layer over `mesh` (one dimension), before FSDP2 shards it. Raises ConfigError for a layer of
    another kind."""
    missing = [name for name in (*COLUMNS, *ROWS) if not isinstance(_submodule(layer, name), nn.Linear)]
    if missing:
        raise ConfigError(
            f"learner.tensor_parallel cannot spread {type(layer).__name__}: {', '.join(missing)} is no linear layer; "
            "use a model of the Llama family (Qwen2, Qwen3, Llama), or set 1"
        )
    plan = {name: ColwiseParallel() for name in COLUMNS} | {name: RowwiseParallel() for name in ROWS}
    parallelize_module(layer, mesh, plan)


def is_spread(param: DTensor) -> bool:
    """Whether it is of a layer in COLUMNS or ROWS, and so lies on the mesh of two dimensions."""
    return param.device_mesh.ndim == 2


def is_cut(param: DTensor) -> bool:
    """Whether each rank of a tensor group has another part of it. The bias of a layer in ROWS is whole on each."""
    return is_spread(param) and param.placements[1].is_shard()


def part(whole: torch.Tensor, like: DTensor) -> torch.Tensor:
    """This rank's part of a whole tensor, as `like` is cut: over the tensor group first, then over the others."""
    mesh = like.device_mesh
    if not is_spread(like):
        return distribute_tensor(whole, mesh, like.placements, src_data_rank=None).to_local()
    # The strided placement that FSDP2 gives such a parameter cannot be distributed to by name.
    shards, tensor = (mesh[name] for name in mesh.mesh_dim_names)
    (over_tensor,) = like.placements[1:]
    mine = distribute_tensor(whole, tensor, [over_tensor], src_data_rank=None).to_local()
    return distribute_tensor(mine.contiguous(), shards, [Shard(0)], src_data_rank=None).to_local()


def whole_of(shard: torch.Tensor, like: DTensor, mesh: DeviceMesh) -> torch.Tensor:
    """Collective over `mesh`, of two dimensions. The whole of a spread tensor: gathered over each in turn."""
    shards, tensor = (mesh[name] for name in mesh.mesh_dim_names)
    (over_tensor,) = like.placements[1:]
    mine = DTensor.from_local(shard, shards, [Shard(0)], run_check=False).full_tensor()
    return DTensor.from_local(mine, tensor, [over_tensor], run_check=False).full_tensor()


def _submodule(layer: nn.Module, name: str) -> nn.Module | None:
    for part_name in name.split("."):
        layer = getattr(layer, part_name, None)
    return layer
