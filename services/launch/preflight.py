"""Looks, before anything is made or started, at what only loading can show: tokenizer, task, environment, reward.

Guarantees: the user's modules run in a process of their own, in an empty folder and with the import path of a run's
parts; it ends, with all it started in its session, before `preflight` returns, and with this process; what is wrong is
raised by its key, as the error that a part of the run would end with half a minute later. It does not call the reward:
whether that scores is the run's business.
"""

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from streamrl.config import Config, ConfigProblems
from streamrl.config.known import REWARD_MODEL
from streamrl.config.loading.full_paths import full_paths
from streamrl.errors import ComponentError, ConfigError, DeadlineError, StreamRLError
from streamrl.services.actors.process_environment import extend_import_path, import_path, variables
from streamrl.services.launch.environment import launch_environment
from streamrl.services.launch.tokenizer_folder import tokenizer_folder
from streamrl.services.run.ending import error_of
from streamrl.system.poll import readable
from streamrl.system.processes import end_session

if TYPE_CHECKING:
    from streamrl.tasks.base import Task

PR_SET_PDEATHSIG = 1
# Of a message: a user's exception may be of any length.
_LONGEST = 4000
# Of the training data, whose columns are looked at.
_ROWS = 256
REWARDS_MODEL = "reward.model.path"
_KEYED = re.compile(r"[a-z_]+(\.[a-z_]+)+( =|:)")


def preflight(config: Config) -> None:
    """Look at a configuration. Raises ConfigError for what is wrong, DeadlineError after `deadlines.start_s`,
    and ComponentError when the user's modules end the process that imports them.
    """
    with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as words, tempfile.TemporaryDirectory() as empty:
        child = _start(full_paths(config), answer, words, empty)
        try:
            in_time = _wait(child, config.deadlines.start_s)
        finally:
            end_session(child.pid)
            code = child.wait()
        begun, error = _read(answer)
        if not in_time:
            limit = f"deadlines.start_s = {config.deadlines.start_s:g}"
            raise DeadlineError(f"{begun} took longer than {limit}; make it quicker to import, or allow more")
        if error is None:
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            raise ComponentError("; ".join([f"{begun} ended its process by {how}", *_last_line(words)]))
        if error:
            raise error_of(error)


def _start(config: Config, answer: IO[bytes], words: IO[bytes], folder: str) -> subprocess.Popen[bytes]:
    order = {"answer_fd": answer.fileno(), "parent": os.getpid(), "config": msgspec.to_builtins(config)}
    return subprocess.Popen(
        # Unbuffered: what the user's module printed last is told, also when it ends the process at once.
        [sys.executable, "-u", "-P", "-m", "streamrl.services.launch.preflight", json.dumps(order)],
        stdin=subprocess.DEVNULL,
        stdout=words,
        stderr=words,
        pass_fds=[answer.fileno()],
        env={**launch_environment(os.environ), **variables(1, import_path())},
        cwd=folder,
        start_new_session=True,
    )


def _wait(child: subprocess.Popen[bytes], limit_s: float) -> bool:
    """Whether it ended in time. It is not reaped, so that its number is nobody else's yet."""
    with open(os.pidfd_open(child.pid), "rb", buffering=0) as ends:
        return bool(readable([ends.fileno()], limit_s))


def _read(answer: IO[bytes]) -> tuple[str, dict[str, Any] | None]:
    """What the child looked at last, and what it found: {} for nothing, None where it did not come to an end."""
    answer.seek(0)
    begun, error = "the process that looks at the configuration", None
    for line in answer:
        told = json.loads(line)
        begun, error = told.get("begun", begun), told.get("error", error)
    return begun, error


def _last_line(words: IO[bytes]) -> list[str]:
    words.seek(0)
    return [line[:_LONGEST] for line in words.read().decode(errors="replace").strip().splitlines()[-1:]]


# ---- in the child


def main(order: dict[str, Any]) -> int:
    """Look, and write lines of JSON to the answer's descriptor: what is begun, and the described error, or {}."""
    # Here and not above: `up` itself needs none of it.
    from streamrl.services.run.control.server import described

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != order["parent"]:
        return 1
    os.set_inheritable(order["answer_fd"], False)
    extend_import_path()

    def tell(**told: object) -> None:
        os.write(order["answer_fd"], json.dumps(told).encode() + b"\n")

    error = {}
    try:
        check(msgspec.convert(order["config"], Config), lambda what: tell(begun=what))
    except StreamRLError as found:
        error = {**described(found), "message": str(found)[:_LONGEST]}
    tell(error=error)
    return 0


def check(config: Config, begin: Callable[[str], None] = lambda _what: None) -> None:
    """Load all that a user may have got wrong, in this process. begin: told each thing before it is loaded. Raises
    ConfigError, with the key."""
    with tokenizer_folder(config.model) as folder:
        for key, what, look in _looks(config, folder):
            begin(": ".join(part for part in (key, what) if part))
            with _named(key):
                look()


Look = tuple[str, str, Callable[[], object]]
"""A key, what stands there in words, and what raises ConfigError where that is not to be had."""


def _looks(config: Config, folder: Path) -> Iterator[Look]:
    """folder: with the tokenizer."""
    from streamrl.engines.server.process.place import engine_python
    from streamrl.services.run.gateway_address import check_certificate
    from streamrl.tasks.load import load_task

    if config.gateway.has_tls:
        yield "gateway.tls_cert", "the certificate", lambda: check_certificate(config.gateway)
    if starts_server_here(config):
        yield "rollout.server.python", "the server's Python", lambda: engine_python(config, Path(import_path()))
    yield from _models(config, folder)
    of_class = config.training_data is None
    task = f"task {config.task.name!r}" if of_class else "the data"
    columns: list[set[str] | None] = []
    key = "task.name" if of_class else ""
    yield key, task, lambda: columns.append(_columns(config, load_task(config, folder)[0]))
    yield from _environment(config, folder)
    yield from _rewards(config, columns[0])


def _models(config: Config, folder: Path) -> Iterator[Look]:
    """The weights of each folder by their headers, and the vocabulary of those beside the policy."""
    from streamrl.models.vocabulary import require_same_vocabulary

    for key, path in (
        ("model.path", config.model.path),
        ("learner.algorithm.reference.path", config.learner.algorithm.reference.path),
        ("learner.critic.path", config.learner.critic.path),
        (REWARDS_MODEL, config.reward.model.path),
    ):
        if path is None:
            continue
        other = Path(path).expanduser()
        if key != "model.path":
            yield key, f"model {path!r}", partial(require_same_vocabulary, folder, other, key)
        yield key, f"model {path!r}", partial(_fits, other, key == REWARDS_MODEL)


def _fits(folder: Path, scores: bool) -> None:
    from streamrl.models.fitting.plain_shapes import fits_plainly

    if not scores and fits_plainly(folder):
        return
    # Here and not above: with torch and transformers, which take seconds.
    from streamrl.models.fitting.weights_fit import require_fitting_weights

    require_fitting_weights(folder, scores=scores)


def _environment(config: Config, folder: Path) -> Iterator[Look]:
    """The tools, the class and its options, and whether the model can hold its conversations."""
    environment = config.environment
    if (name := environment.name) is None:
        return
    from streamrl.environments.build import environment_factory, find_tool
    from streamrl.environments.open import model_chat
    from streamrl.models.tokenizer import load_tokenizer

    for tool in environment.tools:
        yield "environment.tools", f"tool {tool!r}", partial(find_tool, tool, config.sandbox)
    given = name, environment.options or {}, environment.tools, config.sandbox
    yield "environment.name", f"environment {name!r}", partial(environment_factory, *given)
    yield "model", "the model's chat", lambda: model_chat(config, folder, load_tokenizer(folder))


def _columns(config: Config, task: "Task") -> set[str] | None:
    """The keys of the payloads of some rows, which lie over all of them; None where clients give others."""
    if config.gateway.enabled:
        return None
    stride = max(1, -(-task.num_train // _ROWS))
    found = {key for number in range(0, task.num_train, stride) for key in _payload(task, number)}
    if not config.plays_episodes:
        return found
    from streamrl.environments.play import RECORD  # with numpy and the dialects of all chats

    return found | {RECORD}


def _payload(task: "Task", number: int) -> dict[str, Any]:
    try:
        payload = json.loads(task.train(number).payload)
    except ValueError as error:
        raise ConfigError(f"task {task.name!r}: the payload of train({number}) is not JSON: {error}") from error
    if not isinstance(payload, dict):
        what = f"is a JSON {type(payload).__name__}, not an object"
        raise ConfigError(f"task {task.name!r}: the payload of train({number}) {what}")
    return payload


def _rewards(config: Config, columns: set[str] | None) -> Iterator[Look]:
    """Each function, then all of them with their options, and a reward model. columns: that rows have."""
    from streamrl.rewards.build import make_scorer
    from streamrl.rewards.scorer import resolve_reward

    rule, key = config.reward.rule, "reward.function" if config.reward.functions is None else "reward.functions"
    for name in rule.functions:
        if name != REWARD_MODEL:
            yield key, f"reward {name!r}", partial(resolve_reward, name)
    make = partial(make_scorer, rule, config.reward.model, config.sandbox, columns)
    yield key, f"reward {rule.name!r}", lambda: make().close()


@contextmanager
def _named(key: str) -> Iterator[None]:
    """Put the key before a message that names none."""
    try:
        yield
    except ConfigProblems:
        raise  # each of them has its key
    except ConfigError as error:
        if not key or _KEYED.match(str(error)):
            raise
        raise ConfigError(f"{key}: {error}") from error


def starts_server_here(config: Config) -> bool:
    """Whether replicas on this machine start servers; on other nodes their own Python is looked for."""
    rollout = config.rollout
    return rollout.is_server and rollout.server.endpoint is None and rollout.resources is None


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
