"""The rules about where replicas run, `rollout.resources`. Pure: a configuration in, problems out, as in `rules`."""

import math
from collections.abc import Iterator

from streamrl.config.problems import Problem
from streamrl.config.schema.run import Config
from streamrl.config.toml_text import dotted, quoted

_RESOURCES = "rollout.resources"
_OTHER_NAMES = {"num_cpus": "CPU", "num_gpus": "GPU", "cpu": "CPU", "gpu": "GPU", "cpus": "CPU", "gpus": "GPU"}
_RAYS_OWN = ("memory", "object_store_memory")
_LEAST = 1e-4
"""The least part of a resource that Ray gives away."""


def replicas_placed_on_a_cluster(config: Config) -> Iterator[Problem]:
    given = config.rollout.resources
    if given is not None and config.ray.address == "local":
        what = "a Ray of the run's own has one node, this one; set ray.address to a cluster's, or leave this key out"
        yield Problem(key=_RESOURCES, what=what, given=quoted(given), involves=("ray.address",))
    if given is None and config.rollout.placement == "pack":
        what = "replicas run on the run's own node; set rollout.resources, by which they are placed, or leave this out"
        yield Problem(key="rollout.placement", what=what, given='"pack"', involves=(_RESOURCES,))


def resources_by_rays_names(config: Config) -> Iterator[Problem]:
    for name, amount in (config.rollout.resources or {}).items():
        key, given = f"{_RESOURCES}.{dotted([name])}", quoted(amount)
        if (right := _OTHER_NAMES.get(name.lower())) is not None and name != right:
            what = "no node has a resource of this name; Ray's own are CPU and GPU"
            yield Problem(key=key, what=what, given=given, suggestion=right)
        elif name in _RAYS_OWN:
            what = (
                "Ray keeps this one for itself; name CPU, GPU, or what a node was started with (ray start --resources)"
            )
            yield Problem(key=key, what=what, given=given)
        elif not _LEAST <= amount < math.inf:
            yield Problem(key=key, what=f"Ray gives parts of {_LEAST:g} and more away, and no infinity", given=given)
        elif name == "GPU" and amount > 1 and amount != int(amount):
            yield Problem(
                key=key, what="a GPU is shared or taken whole; set a part of one, or a whole number", given=given
            )


PLACEMENT_RULES = (replicas_placed_on_a_cluster, resources_by_rays_names)
