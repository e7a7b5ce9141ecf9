"""Whether this machine has what the addresses of a configuration need: the packages of their schemes."""

from collections.abc import Iterator
from importlib.util import find_spec

from streamrl.config.problems import MACHINE, Problem
from streamrl.config.schema.run import Config
from streamrl.storage.address import PACKAGES, local_path, scheme_of


def check_stores(config: Config) -> list[Problem]:
    """What keeps a run from reaching its stores, as far as that shows without asking them."""
    addresses = {"checkpoint.folder": config.checkpoint.folder, "weights.folder": config.weights.folder}
    return [one for key, address in addresses.items() if address is not None for one in _faults(key, address)]


def _faults(key: str, address: str) -> Iterator[Problem]:
    scheme = scheme_of(address)
    if local_path(address) is not None:
        return
    package = PACKAGES.get(scheme)
    if package is not None and find_spec(package.module) is None:
        what = f"{scheme}:// needs the package {package.module}; install it: `pip install 'streamrl[{package.extra}]'`"
        yield Problem(key=key, what=what, file=MACHINE)
    elif package is None and not _is_known(scheme):
        known = ", ".join(f"{one}://" for one in PACKAGES)
        yield Problem(key=key, what=f"no such kind of store: {scheme}://; there are file://, {known}", file=MACHINE)


def _is_known(scheme: str) -> bool:
    """Whether fsspec has heard of it; whether its package is here shows when it is opened."""
    from fsspec.registry import known_implementations, registry  # a run without such an address does without it

    return scheme in known_implementations or scheme in registry
