"""`streamrl rescore`: another verdict on what a run has generated, without generating it again.

Guaranteed: the run is not up meanwhile, and its configuration names the new reward from then on, so that what it
generates later is scored alike. What was refused changes neither.
"""

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from streamrl.config import Config, diff, dump, load, load_args
from streamrl.errors import ConfigError, RunFolderError
from streamrl.services.actors.process_environment import extend_import_path
from streamrl.services.reward.rescoring import Rescoring, rescore
from streamrl.services.run.folder import RunFolder, RunState, write_whole
from streamrl.services.run.run_lock import RunLock


def main(run: RunFolder, reward: str | None, rest: Sequence[str], *, as_json: bool) -> int:
    """Score the rollouts of `run` again and say what came of it. Errors: `config_of`, `rescore`."""
    with _not_up(run):
        config = config_of(run, reward, rest)
        extend_import_path()
        done = asyncio.run(rescore(run, config))
        if diff(load(run.config_path), config):
            write_whole(run.config_path, dump(config).encode())
    facts = {"run": run.name, "reward": config.reward.rule.name, **msgspec.to_builtins(done)}
    print(json.dumps(facts) if as_json else "\n".join(_lines(run, config, done)))
    return 0


def config_of(run: RunFolder, reward: str | None, rest: Sequence[str]) -> Config:
    """The configuration of a run with another reward. reward: a function, in the place of what the run has; rest: keys
    of `reward` as the command line spells them.

    Raises:
        ConfigError: a key that is none of `reward`.
    """
    config = load_args(run.config_path, rest)
    foreign = [key for key in diff(load(run.config_path), config) if not key.startswith("reward.")]
    if foreign:
        raise ConfigError(f"rescore changes the reward and nothing else, not {foreign[0]}: give keys of [reward]")
    if reward is None:
        return config
    rule = msgspec.structs.replace(config.reward, function=reward, functions=None)
    return msgspec.structs.replace(config, reward=rule)


@contextmanager
def _not_up(run: RunFolder) -> Iterator[None]:
    lock = RunLock.take(run.lock_path)
    if lock is None:
        raise RunFolderError(
            f"run {run.name} is up, and learns from the scores that it has: end it with `streamrl down {run.path}`, "
            "score it again, and bring it up again"
        )
    try:
        lock.sign()
        yield
    finally:
        lock.abandon()


def _lines(run: RunFolder, config: Config, done: Rescoring) -> list[str]:
    failed = f", {done.failed} without a score ({done.reason})" if done.failed else ""
    lines = [
        f"{done.rows} rollouts of {run.name} scored by {config.reward.rule.name}{failed}: mean reward "
        f"{_shown(done.before)} -> {_shown(done.after)} (revision {done.revision})"
    ]
    if done.gone:
        lines.append(f"{done.gone} rollouts keep their scores: their completions are not in {run.path} any more")
    if run.state() is RunState.FINISHED:
        return [*lines, "the run has finished: nothing learns from these scores; `streamrl sql` has them"]
    again = f"`streamrl up {run.config_path}` goes on with this reward"
    return [*lines, f"{done.learning} groups that no checkpoint has learn from the new scores; {again}"]


def _shown(mean: float | None) -> str:
    return "-" if mean is None else f"{mean:.4f}"
