"""A policy whose parameters are sharded over the ranks (FSDP2), and its weights as whole tensors.

Guarantees: master weights are float32; forward and backward compute in `dtype`; what `iter_hf_weights`
gives is bit for bit what the forward computes with. One rank goes through the same code, but for one on a GPU
(`computes_alone`). The model's tied head has one parameter and one name. What requires no gradient is sharded too, and
is no part of what is trained.
Knows nothing of optimizers and losses.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from streamrl.config.schema.learner import ExecutionConfig
from streamrl.errors import ConfigError, DataError
from streamrl.learner.checkpoint.digest import weight_digest
from streamrl.learner.finite import require_finite_weight
from streamrl.learner.model.execution import offload_policy, prepare
from streamrl.learner.model.fused_layers import fuse, ops_for
from streamrl.learner.model.host_copies import HostCopies
from streamrl.learner.model.master_copies import MasterCopies
from streamrl.learner.model.policy import PREFIX, PolicyModel
from streamrl.learner.parallel.process_group import LearnerGroup
from streamrl.learner.parallel.sequence_parallel import require_heads
from streamrl.learner.parallel.tensor_parallel import (
    OF_HEADS,
    is_cut,
    is_spread,
    part,
    require_divisible,
    spread,
    whole_of,
)

TensorByName = Callable[[str], torch.Tensor]


def computes_alone(group: LearnerGroup, dtype: torch.dtype, execution: ExecutionConfig) -> bool:
    """Whether one rank does without FSDP2: on a GPU, in a lower precision than its masters have. On a CPU one rank goes
    through the same code as several, so that two shares on it and on two ranks agree to the bit."""
    lower = dtype != torch.float32
    return group.world_size == 1 and group.device.type == "cuda" and lower and not execution.offload


def _local(param: torch.Tensor) -> torch.Tensor:
    """This rank's part of a parameter."""
    return param.to_local() if isinstance(param, DTensor) else param.detach()


PLAIN = ExecutionConfig()
"""Nothing but FSDP2."""


class ShardedPolicy:
    """The model of one rank.

    `module` is called like a `PolicyModel`. `shards` are this rank's parts of the trained parameters, by Hugging
    Face name, in the model's order: plain float32 leaf tensors that share memory with the parameters, so
    that an optimizer over them costs nothing of DTensor's dispatch.
    """

    def __init__(
        self, model: PreTrainedModel, group: LearnerGroup, dtype: torch.dtype, execution: ExecutionConfig = PLAIN
    ) -> None:
        """Collective. Takes `model` over: it must hold the same weights on every rank, and is not usable by
        itself afterwards. Raises ConfigError when its layers are not found, or cannot be computed as `execution`
        says."""
        self.group = group
        self.dtype = dtype
        self.version_dtype = dtype
        """Of the tensors that a version holds."""
        self.hidden_size = int(model.config.get_text_config().hidden_size)
        layers = getattr(model.base_model, "layers", None)
        if not isinstance(layers, nn.ModuleList):
            raise ConfigError(
                f"the learner found no list of layers in {type(model).__name__}; use a decoder-only model of "
                "the Llama family (Qwen2, Qwen3, Llama)"
            )
        # Still in the CPU's memory: what goes to the device goes there a layer at a time, and as this rank's shard.
        self.module = self._wrapped(model.to(dtype=torch.float32), execution)
        if group.tensor_size > 1:
            require_divisible(model.config.get_text_config(), group.tensor_size, group.shard_size)
        if group.sequence is not None:
            require_heads(model.config.get_text_config(), group.sequence.size, group.tensor_size)
        if (ops := ops_for(execution, group.device)) is not None and group.tensor_size == 1:
            fuse(model, ops)
        self._masters: MasterCopies | None = None
        if computes_alone(group, dtype, execution):
            for layer in layers:
                prepare(layer, execution, group.device)
            self._masters = MasterCopies(self.module.to(group.device), dtype)
        else:
            self._shard(layers, execution)
        self._reduces_every_pack = execution.reduce_every_pack
        self._copies: dict[str, torch.Tensor] = {}
        self._on_host = HostCopies(group.device) if group.device.type == "cuda" and group.world_size == 1 else None
        named = {self._name(name.removeprefix(PREFIX)): param for name, param in self.module.named_parameters()}
        self._params = {name: param for name, param in named.items() if param.requires_grad}
        self._frozen = {name: param for name, param in named.items() if not param.requires_grad}
        self.shards = dict(zip(self._params, self._leaves(), strict=True))

    def _shard(self, layers: nn.ModuleList, execution: ExecutionConfig) -> None:
        """FSDP2 over the layers, and over what is around them."""
        group, mixed = self.group, self.dtype != torch.float32
        precision = MixedPrecisionPolicy(
            param_dtype=self.dtype if mixed else None, reduce_dtype=torch.float32 if mixed else None
        )
        offload, over = offload_policy(execution, group.device), group.mesh["shard"]
        for layer in layers:
            layer.to(group.device)
            if group.tensor_size > 1:
                spread(layer, group.mesh["tensor"])
            prepare(layer, execution, group.device)
            fully_shard(layer, mesh=over, mp_policy=precision, offload_policy=offload)
        fully_shard(self.module, mesh=over, mp_policy=precision, offload_policy=offload)

    def _leaves(self) -> Iterator[torch.Tensor]:
        """What the optimizer steps on, in the order of the parameters."""
        if self._masters is not None:
            yield from self._masters.masters.values()
            return
        for param in self._params.values():
            yield param.to_local().detach().requires_grad_()

    def _wrapped(self, model: PreTrainedModel, execution: ExecutionConfig) -> nn.Module:
        """The model with what it is trained for on top; it stands under the attribute `model`."""
        return PolicyModel(model, sequence=self.group.sequence, logits_bytes=execution.logits_bytes)

    def _name(self, parameter: str) -> str:
        """What a parameter of the model is called outside of it."""
        return parameter

    @property
    def num_parameters(self) -> int:
        """Elements of all trained parameters, over all ranks."""
        return sum(param.numel() for param in self._params.values())

    @property
    def num_tensors(self) -> int:
        """Of what is trained."""
        return len(self.shards)

    def num_elements(self, name: str) -> int:
        """Of one trained parameter, over all ranks."""
        return self._params[name].numel()

    @property
    def num_base_parameters(self) -> int:
        """Elements of all parameters that are not trained, over all ranks."""
        return sum(param.numel() for param in self._frozen.values())

    @property
    def num_base_tensors(self) -> int:
        return len(self._frozen)

    def set_gradient_sync(self, last: bool) -> None:
        """Before each backward. last: whether it is the last one of a share. Its gradients are added over the ranks,
        with those kept back before it; with `reduce_every_pack` nothing is kept back."""
        if self._masters is None:
            self.module.set_requires_gradient_sync(last or self._reduces_every_pack)

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of `loss` to those that are there. Collective where the last backward of a share is."""
        loss.backward()
        if self._masters is not None:
            self._masters.add_gradients()

    def collect_gradients(self) -> None:
        """Give every shard the gradient that the backward left at its parameter."""
        for name, gradient in zip(self._params, self._gradients(), strict=True):
            if gradient is None:
                raise ConfigError(f"parameter {name} got no gradient: the model has a part that the loss does not use")
            self.shards[name].grad = gradient
            if self.group.tensor_size > 1 and name.endswith(OF_HEADS):
                gradient = self.shards[name].grad  # the ranks meet on the device, wherever it lies
                gradient.copy_(self.group.sum_over_tensor(gradient.to(self.group.device)))

    def _gradients(self) -> list[torch.Tensor | None]:
        if self._masters is not None:
            return self._masters.gradients()
        grads = (param.grad for param in self._params.values())
        return [None if grad is None else grad.to_local() for grad in grads]

    def counted(self) -> list[float]:
        """Of each shard, the share that this rank answers for in a sum over all ranks."""
        return [1.0 if is_cut(param) else 1.0 / self.group.tensor_size for param in self._params.values()]

    def clear_gradients(self) -> None:
        for name, param in self._params.items():
            param.grad = None
            self.shards[name].grad = None
        if self._masters is not None:
            self._masters.clear()

    def whole(self, name: str, shard: torch.Tensor) -> torch.Tensor:
        """Collective. The whole of a tensor that is sharded like parameter `name`; with one rank it is
        `shard`. The rows of a matrix may have another length than the parameter's."""
        return self._whole(self._params[name], shard, self.group.mesh)

    def _whole(self, like: DTensor, shard: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
        if self.group.world_size == 1:
            return shard.detach()
        # The ranks meet where the mesh is, wherever their shards lie.
        shard = shard.detach().to(self.group.device if mesh is self.group.mesh else mesh.device_type)
        if is_spread(like):
            return whole_of(shard, like, mesh)
        mesh = mesh["shard"]
        shape = like.shape if like.ndim < 2 else (*like.shape[:-1], shard.shape[-1])
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(shard, mesh, like.placements, shape=shape, stride=stride).full_tensor()

    def snapshot(self) -> dict[str, torch.Tensor]:
        """Copies of this rank's shards in `version_dtype`, which later steps leave as they are. The next call writes
        over them: one snapshot is in memory."""
        if not self._copies:
            self._copies = {
                name: torch.empty_like(shard, dtype=self.version_dtype) for name, shard in self.shards.items()
            }
        with torch.no_grad():
            for name, shard in self.shards.items():
                self._copies[name].copy_(shard)
        if self._on_host is not None:
            self._on_host.mark()
        return self._copies

    def gather(self, snapshot: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
        """Collective, on a group of its own: a thread may gather a snapshot while another one trains. What
        `iter_version` gave at the moment of the snapshot, or would have refused: whoever publishes it looks whether it
        is finite, in the pass that copies it. In the memory of the CPU, which has room for a whole version."""
        if self._on_host is not None:
            yield from self._on_host.copies(snapshot).items()
            return
        for name, shard in snapshot.items():
            yield name, self._whole(self._params[name], shard, self.group.beside).cpu()

    def gather_base(self, beside: bool = True) -> Iterator[tuple[str, torch.Tensor]]:
        """Collective. The parameters that are not trained, whole and in `dtype`; on the group of `gather`, or else on
        that of the steps."""
        mesh = self.group.beside if beside else self.group.mesh
        for name, param in self._frozen.items():
            yield name, self._whole(param, _local(param), mesh).to(self.dtype)

    def shard_of(self, name: str, whole: torch.Tensor) -> torch.Tensor:
        """This rank's part, a copy, of a whole tensor shaped like parameter `name`.

        Raises DataError when the shape is another one.
        """
        return self.part_of(name, whole.to(torch.float32))

    def part_of(self, name: str, whole: torch.Tensor, elements: int = 1) -> torch.Tensor:
        """The same in the tensor's own dtype, where it has one number for so many elements of a row."""
        like = self._params[name]
        expected = like.shape if elements == 1 else (*like.shape[:-1], like.shape[-1] // elements)
        if tuple(whole.shape) != tuple(expected):
            raise DataError(f"weight {name}: the shape is {tuple(whole.shape)}, expected {tuple(expected)}")
        mine = whole.to(self.group.device) if self._masters is not None else part(whole.to(self.group.device), like)
        return mine.to(_local(like).device, copy=True)

    def load_weights(self, tensor: TensorByName) -> None:
        """Copy every weight in; `tensor(name)` gives the whole one. All shapes are looked at before the first
        is changed."""
        fresh = {name: self.shard_of(name, tensor(name)) for name in self._params}
        with torch.no_grad():
            for name, shard in self.shards.items():
                shard.copy_(fresh[name])
        self.forget_gathered()

    def forget_gathered(self) -> None:
        """Have the next forward gather the shards as they are now. FSDP keeps the outermost parameters, gathered, until
        a backward has used them; where none follows, as in a look without gradient, they would stay as they were."""
        if self._masters is None:
            self.module.reshard()

    def iter_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Collective. Whole float32 master weights by name, in the model's order."""
        for name, shard in self.shards.items():
            yield name, self.whole(name, shard)

    def iter_hf_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """As `LearnerBackend.iter_hf_weights`."""
        for name, whole in self.iter_weights():
            require_finite_weight(name, whole)
            yield name, whole.to(self.dtype)

    def iter_version(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Collective. What a version of the weights as they are would hold."""
        return self.iter_hf_weights()

    def state_facts(self) -> dict[str, Any]:
        """What belongs to the state beside the trained parameters, as JSON values."""
        return {}

    def check_state(self, facts: Mapping[str, Any]) -> None:
        """Raise DataError when a state with these facts belongs to another policy."""
        if "adapters" in facts:
            raise DataError("the learner state is of adapters (learner.lora), and this learner trains all weights")

    def weight_digest(self) -> str:
        """As `LearnerBackend.weight_digest`."""
        return weight_digest(self.iter_hf_weights())
