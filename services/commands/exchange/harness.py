"""lm-evaluation-harness against a live run: started as a program of its own, with the gateway's address and a token of
scope `generate`.

Guarantees: the token is on no command line; the program ends with the command that waits for it, unless that is killed;
nothing of the package is imported here.
"""

import json
import math
import re
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from streamrl.config import Config, load
from streamrl.errors import ComponentError, ConfigError, RunFolderError
from streamrl.gateway.auth import Scope
from streamrl.observability.evaluations import EvaluationRecord
from streamrl.services.commands.exchange.readiness import require_up
from streamrl.services.run.folder import RunFolder
from streamrl.services.run.gateway_tokens import token_path
from streamrl.services.run.layout import model_folder
from streamrl.services.run.read_logs import last_lines

PROGRAM: Final = "streamrl.services.commands.exchange.harness_program"
LOG: Final = "lm-eval.log"
MISSING: Final = "lm-eval is not installed; pip install 'streamrl[eval]'"
REQUESTS: Final = 16
"""That the harness has under way at once."""
EXIT_CONFIG: Final = 2
_ANSWER_S: Final = 10.0
_STDERR = re.compile(r"_stderr(?=,|$)")
_NO_SCORES = ("alias", "sample_len", "samples", "name")


def run_harness(
    run: RunFolder,
    tasks: Sequence[str],
    *,
    limit: float | None,
    include: Sequence[str],
    chat: bool,
    tell: Callable[[str], None],
) -> list[EvaluationRecord]:
    """Score tasks under the versions that the run serves meanwhile. limit: items of each task, or below 1 a share of
    them. include: folders with task files of one's own. chat: whether prompts go through the model's chat template.

    Raises ConfigError for a task that there is not, and without the package; RunFolderError when the run is not up, or
    has no gateway; ComponentError when the harness fails.
    """
    if not tasks:
        raise ConfigError("--tasks names no task; give some, as --tasks gsm8k,hellaswag")
    missing = [folder for folder in include if not Path(folder).is_dir()]
    if missing:
        raise ConfigError(f"--include {missing[0]}: no such folder; name one with task files (YAML)")
    if limit is not None and not limit > 0:
        raise ConfigError(f"--limit {limit:g}: a number of items, or a share of them below 1")
    if find_spec("lm_eval") is None:
        raise ConfigError(MISSING)
    config = load(run.config_path)
    url = _gateway(run, config)
    token = token_path(run, Scope.GENERATE).read_text()
    before = _model(url, token, config)
    order = {
        "base_url": f"{url}/v1/completions",
        "token": token,
        "model": run.name,
        "tokenizer": str(model_folder(run.path, config)),
        "ca": _absolute(config.gateway.tls_cert) if url.startswith("https:") else None,
        "max_length": before["max_model_len"],
        "max_gen_toks": config.rollout.sampling.max_new_tokens,
        "num_concurrent": REQUESTS,
        "tasks": list(tasks),
        "include": [str(Path(folder).resolve()) for folder in include],
        "limit": limit,
        "chat": chat,
    }
    log = run.logs_path / LOG
    tell(f"lm-eval asks {run.name} for {', '.join(tasks)}; its log is {log}")
    answer = _run_program(order, log)
    return _records(answer, before, _model(url, token, config), limit)


def _gateway(run: RunFolder, config: Config) -> str:
    require_up(run)
    launch = run.record.launch
    if not config.gateway.enabled:
        raise RunFolderError(
            f"run {run.name} has no gateway, through which tasks are scored; `streamrl down {run.name}`, then "
            f"`streamrl up {run.config_path} --gateway.enabled true --name NAME`, or score its held-out items: --k 8"
        )
    if launch is None or not launch.gateway:
        raise RunFolderError(f"the gateway of run {run.name} has not come up yet; `streamrl status` names it then")
    return launch.gateway


def _model(url: str, token: str, config: Config) -> Mapping[str, Any]:
    """What the gateway says of the model: how long its context is, and which versions serve."""
    request = urllib.request.Request(f"{url}/v1/models", headers={"Authorization": f"Bearer {token}"})
    trusted = None
    if url.startswith("https:"):
        trusted = ssl.create_default_context(cafile=_absolute(config.gateway.tls_cert))
        trusted.check_hostname = False  # the certificate is the run's own, whatever name it is reached by
    try:
        with urllib.request.urlopen(request, timeout=_ANSWER_S, context=trusted) as response:
            told: Mapping[str, Any] = json.load(response)["data"][0]
            return told
    except (OSError, ValueError, LookupError) as error:
        raise ComponentError(
            f"the gateway at {url} does not answer: {error}; `streamrl status` says how it is"
        ) from error


def _run_program(order: Mapping[str, Any], log: Path) -> dict[str, Any]:
    """The answer of the program. Its output goes to `log`."""
    with tempfile.TemporaryDirectory() as folder, log.open("ab") as output:
        place = Path(folder) / "answer.json"
        command = [sys.executable, "-P", "-m", PROGRAM, str(place)]  # -P: a folder here may be called as a package is
        program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output)
        try:
            program.communicate(json.dumps(order).encode())
        finally:
            if program.poll() is None:
                program.kill()
                program.wait()
        answer: dict[str, Any] = json.loads(place.read_bytes()) if place.exists() else {}
    if program.returncode == EXIT_CONFIG and "error" in answer:
        raise ConfigError(answer["error"])
    if program.returncode or "results" not in answer:
        words = [line for line in last_lines(log, 20) if line.strip()]
        ended = f"lm-eval ended with code {program.returncode}"
        raise ComponentError(f"{ended}: {words[-1] if words else 'without a word'} (all of it in {log})")
    return answer


def _records(
    answer: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any], limit: float | None
) -> list[EvaluationRecord]:
    last = _newest(after)
    first = _newest(before) or last  # a gateway that nobody has asked yet knows of no version
    records = []
    for name, found in answer["results"].items():
        numbers = {key: value for key, value in found.items() if _is_number(value) and key not in _NO_SCORES}
        records.append(
            EvaluationRecord(
                time_ns=time.time_ns(),
                name=name,
                step=int(first.rpartition(".")[2] or 0),
                version=first,
                last_version=last if last != first else "",
                scores={key: value for key, value in numbers.items() if not _STDERR.search(key)},
                errors={_STDERR.sub("", key): value for key, value in numbers.items() if _STDERR.search(key)},
                source=f"lm-eval {answer['version']}",
                limit=limit,
            )
        )
    if not records:
        raise ComponentError("lm-eval scored nothing")
    return records


def _newest(model: Mapping[str, Any]) -> str:
    versions = model["streamrl"]["versions"]
    return str(versions[-1]) if versions else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _absolute(path: str | None) -> str | None:
    return None if path is None else str(Path(path).expanduser().resolve())
