"""Whether the megatron-core is here that this code was written for.

Attention, optimizer states and layer specifications are reached by names that megatron-core changes from one release to
the next, so there is one version and no range.
"""

from importlib.metadata import PackageNotFoundError, version

from streamrl.errors import ConfigError

VERSION = "0.16.1"
"""The newest that pip takes for Python 3.11, which streamrl runs on: 0.17 and later ask for 3.12."""


def require_megatron() -> None:
    """Raise ConfigError for a package that is missing or of another version."""
    way_out = f"pip install 'megatron-core=={VERSION}' (the extra megatron), or set learner.backend = \"fsdp\""
    try:
        found = version("megatron-core")
    except PackageNotFoundError as error:
        raise ConfigError(f'learner.backend = "megatron": megatron-core is not installed; {way_out}') from error
    if found != VERSION:
        raise ConfigError(f'learner.backend = "megatron": megatron-core {found} is installed, not {VERSION}; {way_out}')
