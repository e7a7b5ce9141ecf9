"""The places that a configuration names, and what becomes of them where the run is deployed. Pure.

A container sees one folder of the outside, the *run's home*: the folder in which `streamrl deploy` was called, mounted
at `HOME`. Relative paths keep their meaning there; what lies elsewhere is not to be had.
"""

from collections.abc import Iterator
from pathlib import PurePosixPath

from streamrl.config.data_names import HUB, cut_split, names_data
from streamrl.config.problems import Problem
from streamrl.config.schema.run import Config
from streamrl.config.toml_text import quoted
from streamrl.storage.address import local_path

HOME = "/streamrl"
"""Where the run's home is in a container; its processes start there."""
ENGINES = "/opt/engines"
"""Where the image has the environments of servers."""


def run_folder(config: Config, home: str) -> str:
    """The run folder's full path, in a container whose home is `home`."""
    return str(PurePosixPath(home) / config.runs / config.name)


def outside_home(config: Config) -> Iterator[Problem]:
    """Places that a container does not see."""
    for key, place in named_places(config):
        if not _is_inside(place):
            what = (
                f"not below the folder of the run, which is all that a container sees, as {HOME}; put it below the "
                f"folder in which you call `streamrl deploy`, and name it from there, or below {HOME}"
            )
            yield Problem(key=key, what=what, given=quoted(place))


def named_places(config: Config) -> Iterator[tuple[str, str]]:
    """Each key that names a file or folder, with its value."""
    single = {
        "runs": config.runs,
        "model.path": config.model.path,
        "learner.critic.path": config.learner.critic.path,
        "learner.algorithm.reference.path": config.learner.algorithm.reference.path,
        "reward.model.path": config.reward.model.path,
        "data.cache": config.data.cache,
        "gateway.tls_cert": config.gateway.tls_cert,
        "gateway.tls_key": config.gateway.tls_key,
        "checkpoint.folder": _folder(config.checkpoint.folder),
        "weights.folder": _folder(config.weights.folder),
        "rollout.server.python": config.rollout.server.python,
        "sandbox.python": config.sandbox.python,
        "task.name": config.task.name if names_data(config.task.name) else None,
    }
    yield from ((key, place) for key, place in single.items() if place is not None)
    files = [("data.train", one) for one in config.data.train_addresses]
    files += [("data.eval", one) for one in config.data.eval_addresses.values()]
    yield from ((key, cut_split(place)[0]) for key, place in files)


def _folder(address: str | None) -> str | None:
    """The folder that an address names; None for a store, which a container reaches as any other machine does."""
    path = None if address is None else local_path(address)
    return None if path is None else str(path)


def _is_inside(place: str) -> bool:
    if place.startswith(HUB):
        return True
    path = PurePosixPath(place)
    if path.is_absolute():
        return any(path.is_relative_to(root) for root in (HOME, ENGINES)) and ".." not in path.parts
    return ".." not in path.parts and not place.startswith("~")
