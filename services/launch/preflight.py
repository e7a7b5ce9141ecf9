"""Looks, before anything is made or started, at what only loading can show: tokenizer, task, environment, reward.

Guarantees: the user's modules run in a process of their own, which ends, with all it started in its session,
before `preflight` returns, and with this process; what is wrong is raised as the error that a part of the run
would end with half a minute later. It does not call the reward: whether that scores is the run's business.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

import msgspec

from streamrl.config.schema.run import Config
from streamrl.errors import ComponentError, DeadlineError, StreamRLError
from streamrl.services.actors.process_environment import extend_import_path, import_path, variables
from streamrl.services.launch.environment import launch_environment
from streamrl.services.launch.tokenizer_folder import tokenizer_folder
from streamrl.services.run.ending import error_of
from streamrl.system.poll import readable
from streamrl.system.processes import end_session

PR_SET_PDEATHSIG = 1
# Of a message: a user's exception may be of any length, and a pipe holds 64 KiB.
_LONGEST = 4000


def preflight(config: Config) -> None:
    """Look at a configuration. Raises ConfigError for what is wrong, DeadlineError after `deadlines.start_s`,
    and ComponentError when the user's modules end the process that imports them.
    """
    reader, writer = os.pipe()
    with open(reader, "rb") as answer, tempfile.TemporaryFile() as words:
        try:
            child = _start(config, writer, words)
        finally:
            os.close(writer)
        try:
            in_time = _wait(child, config.deadlines.start_s)
        finally:
            end_session(child.pid)
            code = child.wait()
        if not in_time:
            limit = f"deadlines.start_s = {config.deadlines.start_s:g}"
            raise DeadlineError(f"importing {_theirs(config)} took longer than {limit}; make it quicker, or allow more")
        _raise_answer(_read(answer), code, config, words)


def _start(config: Config, writer: int, words: IO[bytes]) -> subprocess.Popen[bytes]:
    order = json.dumps({"answer_fd": writer, "parent": os.getpid(), "config": msgspec.to_builtins(config)})
    return subprocess.Popen(
        # Unbuffered: what the user's module printed last is told, also when it ends the process at once.
        [sys.executable, "-u", "-P", "-m", "streamrl.services.launch.preflight", order],
        stdin=subprocess.DEVNULL,
        stdout=words,
        stderr=words,
        pass_fds=[writer],
        env={**launch_environment(os.environ), **variables(1, import_path())},
        start_new_session=True,
    )


def _wait(child: subprocess.Popen[bytes], limit_s: float) -> bool:
    """Whether it ended in time. It is not reaped, so that its number is nobody else's yet."""
    with open(os.pidfd_open(child.pid), "rb", buffering=0) as ends:
        return bool(readable([ends.fileno()], limit_s))


def _read(answer: IO[bytes]) -> bytes:
    """What the child has written; a program of the user's that holds the pipe must not hold us."""
    os.set_blocking(answer.fileno(), False)
    try:
        return os.read(answer.fileno(), 1 << 16)
    except BlockingIOError:
        return b""


def _raise_answer(answer: bytes, code: int, config: Config, words: IO[bytes]) -> None:
    if answer and code == 0:
        error = json.loads(answer)
        if error is not None:
            raise error_of(error)
        return
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    words.seek(0)
    last = words.read().decode(errors="replace").strip().splitlines()[-1:]
    raise ComponentError("; ".join([f"importing {_theirs(config)} ended its process by {how}", *last]))


def _theirs(config: Config) -> str:
    what = f"task {config.task.name!r}" if config.training_data is None else "the data"
    name = config.environment.name
    return f"{what}{'' if name is None else f', environment {name!r}'} and reward {config.reward.rule.name!r}"


# ---- in the child


def main(order: dict[str, Any]) -> int:
    """Check, and write the described error, or null, to the answer's descriptor."""
    # Here and not above: `up` itself needs none of it.
    from streamrl.services.run.control.server import described

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != order["parent"]:
        return 1
    os.set_inheritable(order["answer_fd"], False)
    extend_import_path()
    error = None
    try:
        check(msgspec.convert(order["config"], Config))
    except StreamRLError as found:
        error = {**described(found), "message": str(found)[:_LONGEST]}
    os.write(order["answer_fd"], json.dumps(error).encode())
    return 0


def check(config: Config) -> None:
    """Load all that a user may have got wrong, in this process. Raises ConfigError."""
    from streamrl.engines.server.process.place import engine_python
    from streamrl.models.vocabulary import require_same_vocabulary
    from streamrl.rewards.build import make_scorer
    from streamrl.services.run.gateway_address import check_certificate
    from streamrl.tasks.load import load_task

    if config.gateway.has_tls:
        check_certificate(config.gateway)
    if starts_server_here(config):
        engine_python(config, Path(import_path()))
    with tokenizer_folder(config.model) as folder:
        if (reference := config.learner.algorithm.reference.path) is not None:
            require_same_vocabulary(folder, Path(reference).expanduser())
        if (critic := config.learner.critic.path) is not None:
            require_same_vocabulary(folder, Path(critic).expanduser(), "learner.critic.path")
        if (scores := config.reward.model.path) is not None:
            require_same_vocabulary(folder, Path(scores).expanduser(), "reward.model.path")
        load_task(config, folder)
        if config.environment.name is not None:
            _check_environment(config, folder)
    make_scorer(config.reward.rule, config.reward.model, config.sandbox).close()


def _check_environment(config: Config, folder: Path) -> None:
    """The class and its options, and whether the model can hold its conversations."""
    from streamrl.environments.build import environment_factory
    from streamrl.environments.open import model_chat
    from streamrl.models.tokenizer import load_tokenizer

    environment = config.environment
    environment_factory(str(environment.name), environment.options or {}, environment.tools, config.sandbox)
    model_chat(config, folder, load_tokenizer(folder))


def starts_server_here(config: Config) -> bool:
    """Whether replicas on this machine start servers; on other nodes their own Python is looked for."""
    rollout = config.rollout
    return rollout.is_server and rollout.server.endpoint is None and rollout.resources is None


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
