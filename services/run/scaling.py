"""What a live run may be scaled to: by the rules of its configuration, and by what its machine has left."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from streamrl.config import Config, ResourceProblems, load_args
from streamrl.config.estimates.resources import check_growth
from streamrl.errors import ConfigError
from streamrl.services.run.folder import RunRecord

KEYS: Final = {"rollout": "rollout.replicas", "reward": "reward.workers"}
"""Of each part that can be scaled the key of how many there are."""
AUTO: Final = "auto"
"""In the place of a number of replicas: as many as autoscaling finds best."""
Sizes = dict[str, int]
"""How many, by part."""
Wanted = dict[str, int | None]
"""The same as somebody asked for it; None: autoscaling decides."""


def sizes(record: RunRecord, config: Config) -> Sizes:
    """How many of each part a run begins with: as it was scaled to, else as its configuration says."""
    scaled = {"rollout": record.replicas, "reward": record.reward_workers}
    return {part: scaled[part] or size for part, size in _configured(config).items()}


def remembered(record: RunRecord, wanted: Mapping[str, int | None]) -> RunRecord:
    """The record of a run that is scaled to these numbers."""
    fields = {"rollout": "replicas", "reward": "reward_workers"}
    return msgspec.structs.replace(record, **{fields[part]: size for part, size in wanted.items()})


def requested_sizes(config_path: Path, now: Mapping[str, int], asked: Mapping[str, object]) -> Wanted:
    """How many a run is to have of the parts that somebody asks for. now: of each part. asked: by part, as somebody
    wrote it.

    Raises:
        ConfigError: a part that cannot be scaled, a number that the configuration could not have, or `auto` without
        autoscaling. ResourceError: the machine has no memory for so many more.
    """
    unknown = sorted(asked.keys() - KEYS.keys())
    if unknown or not asked:
        raise ConfigError(f"{unknown[0] if unknown else 'nothing'!r} cannot be scaled; what can: {', '.join(KEYS)}")
    left = {part for part, number in asked.items() if part == "rollout" and number == AUTO}
    if left:
        _require_autoscaling(config_path)
    numbers = {part: number for part, number in asked.items() if part not in left}
    before, after = (load_args(config_path, _arguments({**now, **more})) for more in ({}, numbers))
    problems = check_growth(before, after)
    if problems:
        raise ResourceProblems(tuple(problems))
    return {part: None if part in left else size for part, size in _configured(after).items() if part in asked}


def outcome(before: Mapping[str, int], wanted: Mapping[str, int | None]) -> dict[str, Any]:
    """What somebody is told who scaled: the number of each part, and under `before` what it was, by part where there
    are several."""
    was = {part: before[part] for part in wanted}
    told = {part: AUTO if size is None else size for part, size in wanted.items()}
    return {**told, "before": was if len(was) > 1 else next(iter(was.values()))}


def shortage(config: Config, before: int, after: int) -> str:
    """What this machine has too little of for a run to go on with `after` replicas, in words; "" for nothing."""
    problems = check_growth(_with_replicas(config, before), _with_replicas(config, after))
    return "; ".join(str(problem) for problem in problems)


def _with_replicas(config: Config, replicas: int) -> Config:
    return msgspec.structs.replace(config, rollout=msgspec.structs.replace(config.rollout, replicas=replicas))


def _require_autoscaling(config_path: Path) -> None:
    if not load_args(config_path).rollout.autoscaling.enabled:
        key = "rollout.autoscaling.max_replicas"
        raise ConfigError(f"rollout={AUTO} needs autoscaling, which this run has not: {key} is not set; give a number")


def _configured(config: Config) -> Sizes:
    return {"rollout": config.rollout.replicas, "reward": config.reward.workers}


def _arguments(numbers: Mapping[str, object]) -> list[str]:
    """As of a command line."""
    return [word for part, number in numbers.items() for word in (f"--{KEYS[part]}", str(number))]
