"""What every system says in its own words: the model, the name, trackers, GPUs. Pure.

Values that a configuration needs and no other system has, such as the size of the KV cache, are chosen here and told as
notes.
"""

import re
from collections.abc import Callable, Iterable
from pathlib import PurePath
from typing import get_args

import msgspec

from streamrl.config.migration.table import Findings, Setting, Source
from streamrl.config.schema.observe import TrackerName

MODELS = "models"
"""The folder that models of the hub are looked for in, as in the recipes of `configs/`."""
KV_BYTES = 8 * 2**30
NO_REPLAY = "the learner cannot replay a truncated distribution yet; tokens are drawn from all of it"
PACKED = "rows are packed without padding, always"
OWN_TRACKERS = ("console", "file", "none", "json", "rl_logging_board")
"""What other systems call their own output. metrics.jsonl and the logs are always there."""

_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")


class Gpus(msgspec.Struct, frozen=True):
    """What a run of the other system has. train, rollout: GPUs of each; equal and `shared` where both use the same."""

    train: int
    rollout: int
    shared: bool = False
    nodes: int = 1


def write_model(setting: Setting, origin: str, found: Findings, is_folder: Callable[[str], bool]) -> None:
    """`model.path`, and how to come by it: models of the hub are local folders here."""
    name = str(setting.value).rstrip("/")
    if is_folder(name) or not _HUB.fullmatch(name):
        found.write("model.path", name, origin)
        return
    path = f"{MODELS}/{PurePath(name).name}"
    found.write("model.path", path, origin)
    found.note(f"model.path is a local folder: huggingface-cli download {name} --local-dir {path}")


def write_name(key: str, setting: Setting, origin: str, found: Findings) -> None:
    """A name in the letters that ours has."""
    name = _NOT_IN_A_NAME.sub("-", str(setting.value)).strip("-._")[:64]
    if name:
        found.write(key, name, origin)


def write_trackers(setting: Setting, origin: str, found: Findings) -> None:
    """`observe.trackers`, of a list of names or one."""
    given = setting.value if isinstance(setting.value, list) else [setting.value]
    names = [str(name) for name in given if name is not None]
    known = [name for name in names if name in get_args(TrackerName)]
    if known:
        found.write("observe.trackers", known, origin)
    unknown = [name for name in names if name not in (*known, *OWN_TRACKERS)]
    if unknown:
        there = ", ".join(get_args(TrackerName))
        found.leave(setting, f"no tracker here for {', '.join(unknown)}; there are {there}")


def write_gpus(gpus: Gpus, tensor_parallel: int, origin: str, found: Findings) -> None:
    """Ranks of the learner, replicas, and what each takes."""
    found.write("learner.device", "cuda", origin)
    found.write("rollout.device", "cuda", origin)
    found.write("rollout.kv_bytes", KV_BYTES, "no equal: of one replica's KV cache, fit it to the GPU")
    if tensor_parallel > 1:
        found.write("rollout.server.tensor_parallel", tensor_parallel, origin)
    if gpus.shared and gpus.train == 1 and gpus.nodes == 1:
        found.write("learner.gpu_share", 0.5, origin)
        found.write("rollout.gpu_share", 0.5, origin)
        found.note("learner and replica share the GPU; rollout.kv_bytes is what bounds the replica's memory")
        return
    train, rollout = _split(gpus, tensor_parallel, found)
    found.write("learner.num_workers", train, origin)
    found.write("rollout.replicas", max(1, rollout // tensor_parallel), origin)
    if gpus.nodes > 1:
        found.write("rollout.resources", {"GPU": float(tensor_parallel)}, origin)
        found.write("ray.address", "auto", origin)
        found.note("several nodes: replicas run on any node of the cluster of `ray.address` (docs/guides/nodes.md)")


def _split(gpus: Gpus, tensor_parallel: int, found: Findings) -> tuple[int, int]:
    """(GPUs of the learner, of the replicas). Where the other system uses each for both in turn, each has half here,
    since both work at once."""
    if not gpus.shared:
        return gpus.train, gpus.rollout
    if gpus.nodes > 1:
        return gpus.train // gpus.nodes, gpus.rollout - gpus.rollout // gpus.nodes
    rollout = max(tensor_parallel, gpus.rollout // 2 // tensor_parallel * tensor_parallel)
    train = max(1, gpus.train - rollout)
    found.note(f"learner and replicas work at once, on {train} and {rollout} GPUs, and not in turn on all of them")
    return train, rollout


def write_warmup(source: Source, steps_key: str, ratio_key: str, steps: int | None, found: Findings) -> None:
    """`learner.optimizer.warmup_steps`, of a number of steps or a share of all of them. steps: of the run."""
    given, ratio = source.number(steps_key), source.number(ratio_key)
    if given is not None and given > 0:
        found.write("learner.optimizer.warmup_steps", int(given), source.origin(steps_key))
    elif ratio and steps:
        found.write("learner.optimizer.warmup_steps", round(ratio * steps), source.origin(ratio_key))
    elif ratio and source.has(ratio_key):
        found.leave(source.setting(ratio_key), "a share of steps whose number is not known; see learner.steps")
    else:
        found.write("learner.optimizer.warmup_steps", 0, source.origin(steps_key))


def steps_of_epochs(epochs: float | None, rows: int | None, groups: int) -> int | None:
    """Steps of a run that goes over so many rows so often. None where a number is not known."""
    if epochs is None or not rows:
        return None
    return max(1, int(epochs * (rows // groups if rows >= groups else 1)))


def reward_of_data(addresses: Iterable[str]) -> str | None:
    """The built-in reward that the names of data files call for; None where they say nothing."""
    text = " ".join(addresses).lower()
    if "gsm8k" in text:
        return "gsm8k"
    return "math" if re.search(r"math|aime|amc|deepscaler|numina", text) else None
