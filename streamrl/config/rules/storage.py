"""The rules about addresses of places outside the run folder. Pure: a configuration in, problems out."""

from collections.abc import Iterator

from streamrl.config.problems import Problem
from streamrl.config.schema.run import Config
from streamrl.config.toml_text import quoted
from streamrl.storage.address import MEMORY, fault_of, scheme_of


def checkpoint_folder(config: Config) -> Iterator[Problem]:
    """The second place of checkpoints is an address that other processes, and other machines, reach."""
    folder = config.checkpoint.folder
    if folder is not None:
        yield from address_faults("checkpoint.folder", folder)


def address_faults(key: str, address: str) -> Iterator[Problem]:
    """What is wrong with the form of an address. A secret that stands in it is not told."""
    fault = fault_of(address)
    if fault:
        yield Problem(key=key, what=fault)
    elif scheme_of(address) == MEMORY:
        what = "memory:// is the memory of one process, and a run has several; give a folder or a store"
        yield Problem(key=key, what=what, given=quoted(address))
