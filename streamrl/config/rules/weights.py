"""The rules about the ways of versions to other nodes, `[weights]`. Pure: a configuration in, problems out."""

from collections.abc import Iterator
from pathlib import PurePath

from streamrl.config.problems import Problem
from streamrl.config.rules.storage import address_faults
from streamrl.config.schema.run import Config
from streamrl.config.toml_text import quoted
from streamrl.storage.address import has_scheme

_WAY = "weights.between_nodes"


def shared_folder(config: Config) -> Iterator[Problem]:
    """`disk` goes through a folder, and nothing else does."""
    weights = config.weights
    key, given = "weights.folder", quoted(weights.folder)
    if weights.between_nodes == "disk" and weights.folder is None:
        what = '"disk" goes through a folder that all nodes see; set weights.folder, or take another way'
        yield Problem(key=_WAY, what=what, given='"disk"', involves=(key,))
    elif weights.between_nodes != "disk" and weights.folder is not None:
        what = f'"{weights.between_nodes}" goes through no folder; set {_WAY} = "disk", or leave it out'
        yield Problem(key=key, what=what, given=given, involves=(_WAY,))
    elif weights.folder is not None and has_scheme(weights.folder):
        yield from address_faults(key, weights.folder)
    elif weights.folder is not None and not PurePath(weights.folder).is_absolute():
        what = "each node would look for it from where its Ray was started; give an absolute path"
        yield Problem(key=key, what=what, given=given)


def collective_backend(config: Config) -> Iterator[Problem]:
    """NCCL passes on what lies on GPUs."""
    weights, key = config.weights, "weights.collective_backend"
    if weights.collective_backend == "gloo":
        return
    if weights.between_nodes != "collective":
        what = f'"{weights.between_nodes}" speaks no collective library; set {_WAY} = "collective", or leave it out'
        yield Problem(key=key, what=what, given=quoted(weights.collective_backend), involves=(_WAY,))
    elif "cpu" in (config.learner.device, config.rollout.device):
        what = 'NCCL needs a GPU at both ends; set learner.device and rollout.device = "cuda", or "gloo"'
        involves = ("learner.device", "rollout.device")
        yield Problem(key=key, what=what, given=quoted(weights.collective_backend), involves=involves)
