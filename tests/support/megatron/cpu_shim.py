"""megatron-core 0.16.1 on a CPU. It asks for "cuda" by name in many places; here that means the CPU.

Install it before a model is built. With CUDA it does nothing. What only a GPU can compute stays refused: Transformer
Engine's layers, grouped products of experts. What passes with it says nothing of NCCL.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_CPU = torch.device("cpu")
_NO_STATE = torch.zeros(1, dtype=torch.uint8)
"""Of generators that nothing draws from: there is no dropout, and weights are loaded."""


class _CudaIsCpu(TorchFunctionMode):
    """Devices by name, `.cuda()`, and names of tensor types, by which its optimizers tell formats apart."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if _is_cuda(kwargs.get("device")):
            kwargs["device"] = _CPU
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.to and len(args) > 1 and _is_cuda(args[1]):
            args = (args[0], _CPU, *args[2:])
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            return func(*args).replace("torch.", "torch.cuda.")
        if func is torch.Tensor.backward:
            # A mode is off inside its own handler, and layers that are computed again need it.
            gradient = kwargs.pop("gradient", None)
            with self:
                return torch.autograd.backward(args[0], gradient, **kwargs)
        return func(*args, **kwargs)


class _NoStream:
    """A stream, or an event, where all that is asked for is done when the call returns."""

    def __init__(self, *_args: object, **_kwargs: object) -> None: ...

    def wait_stream(self, stream: object) -> None: ...

    def wait_event(self, event: object) -> None: ...

    def synchronize(self) -> None: ...

    def record_event(self, event: object = None) -> object:
        return self

    def record(self, stream: object = None) -> None: ...

    def wait(self, stream: object = None) -> None: ...


def _is_cuda(device: object) -> bool:
    return str(device).startswith("cuda") if isinstance(device, str | torch.device) else False


def make_cuda_cpu() -> None:
    """For this process, and for what the calling thread computes from now on."""
    if not torch.cuda.is_available():
        _patch_torch()
        _patch_megatron()
        _CudaIsCpu().__enter__()


@contextlib.contextmanager
def cuda_is_cpu() -> Iterator[None]:
    """See the module. Until the end of the process what is changed in torch and megatron-core stays so."""
    if torch.cuda.is_available():
        yield
        return
    _patch_torch()
    _patch_megatron()
    with _CudaIsCpu():
        yield


def _patch_torch() -> None:
    stream = _NoStream()
    patches: dict[str, Callable[..., Any] | type] = {
        "current_device": lambda: _CPU,
        "synchronize": lambda *_: None,
        "get_rng_state": lambda *_: _NO_STATE,
        "Stream": _NoStream,
        "Event": _NoStream,
        "current_stream": lambda *_: stream,
        "default_stream": lambda *_: stream,
        "stream": lambda _: contextlib.nullcontext(),
    }
    for name, patch in patches.items():
        setattr(torch.cuda, name, patch)


def _patch_megatron() -> None:
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer.moe import moe_utils, token_dispatcher

    random._get_cuda_rng_state = lambda *_, **__: _NO_STATE
    random._set_cuda_rng_state = lambda *_, **__: None
    # It binds this name only where Transformer Engine is, and asks for it everywhere.
    moe_utils.te_general_gemm = None
    # A tensor in the CPU's memory is left a tensor there, and gloo takes sizes as integers.
    move = token_dispatcher.maybe_move_tensor_to_cpu

    def moved(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        if as_numpy and torch.is_tensor(tensor):
            return tensor.numpy()
        return move(tensor, as_numpy, record_stream)

    token_dispatcher.maybe_move_tensor_to_cpu = moved
