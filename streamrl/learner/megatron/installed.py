"""Whether the megatron-core is here that this code was written for.

Attention, optimizer states and layer specifications are reached by names that megatron-core changes from one release to
the next, so there is one version and no range.
"""

from importlib.metadata import PackageNotFoundError, version

import torch

from streamrl.errors import ConfigError

VERSION = "0.16.1"
"""The newest that pip takes for Python 3.11, which streamrl runs on: 0.17 and later ask for 3.12."""


def require_megatron(device: torch.device) -> None:
    """Raise ConfigError for a package that is missing or of another version, or where there is no GPU."""
    way_out = f"pip install 'megatron-core=={VERSION}' (the extra megatron), or set learner.backend = \"fsdp\""
    try:
        found = version("megatron-core")
    except PackageNotFoundError as error:
        raise ConfigError(f'learner.backend = "megatron": megatron-core is not installed; {way_out}') from error
    if found != VERSION:
        raise ConfigError(f'learner.backend = "megatron": megatron-core {found} is installed, not {VERSION}; {way_out}')
    _require_gpu(device)


def _require_gpu(device: torch.device) -> None:
    """megatron-core puts what it makes on the current GPU, whatever it is told of devices. Tests answer for one."""
    what = 'learner.backend = "megatron" computes on GPUs; set learner.device = "cuda", or learner.backend = "fsdp"'
    try:
        current = torch.device(torch.cuda.current_device())
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"{what}: torch finds no GPU here ({error})") from error
    if current.type != device.type:
        raise ConfigError(what)
