"""The promises of equal bits on processors that this machine is not: the libraries are told, in child processes, to
compute as there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.repository import ROOT
from support.runs.finished_run import Finished
from support.runs.live_run import DENSE, LIMIT_S, STREAMRL

from streamrl.config.schema.run import ModelConfig
from streamrl.models.load import prepare_model_folder
from streamrl.services.run.arithmetic import FILE

PROCESSORS: dict[str, dict[str, str]] = {
    "as it is": {},
    "SSE4.2": {"MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
    "AVX2": {"MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "AVX-512": {"MKL_ENABLE_INSTRUCTIONS": "AVX512"},
    "MKL on another maker's": {"MKL_CBWR": "COMPATIBLE"},
    "torch and oneDNN without AVX": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"},
    "kernels for any": {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""},
    "no compiled kernels": {"NUMBA_DISABLE_JIT": "1"},
}
INVARIANCE = "tests/unit/streamrl/engines/torch/test_batch_invariance.py"
SYNCHRONOUS = (
    *("--learner.steps", "3", "--learner.max_staleness", "0", "--rollout.update_mode", "drain"),
    *("--rollout.deterministic", "true", "--learner.groups_per_step", "16", "--rollout.slots", "64"),
    *("--warmup.max_steps", "0", "--eval.max_items", "16", "--reward.function", "dense:reward"),
)
"""The quickstart's keys for three steps that the reference can make as well."""


@pytest.fixture(scope="module", params=PROCESSORS)
def environment(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of a process on such a processor. Its kernels are its own: compiled ones are kept by processor and by source.
    All tests of an invocation share those, whichever worker runs them: compiling takes longer than most of them."""
    told = PROCESSORS[request.param]
    if request.param == "AVX-512" and "avx512f" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this processor has no AVX-512")
    own = tmp_path_factory.getbasetemp()
    kernels = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "kernels"
    kept = {"NUMBA_CACHE_DIR": str(kernels)} if "NUMBA_CPU_NAME" in told else {}
    unset = {name: value for name, value in os.environ.items() if name != "MKL_CBWR"}
    return {**unset, "OMP_NUM_THREADS": "1", **kept, **told}


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder: a model, and a module with a reward."""
    folder = tmp_path_factory.mktemp("user")
    prepare_model_folder(ModelConfig(preset="tiny-qwen3"), 0, folder / "model")
    (folder / "dense.py").write_text(DENSE)
    return folder


def ended(command: list[str | Path], folder: Path, environment: dict[str, str]) -> str:
    """Output of a command that has to succeed."""
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_what_shares_a_batch_changes_no_bit(environment: dict[str, str]) -> None:
    chosen = "invariant_4 and fastest or self_test_passes or attention_does_not_feel"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", INVARIANCE, "-k", chosen]
    print(ended([str(part) for part in command], ROOT, environment))


def test_the_running_system_is_the_reference_loop_to_the_bit(
    environment: dict[str, str], user: Path, request: pytest.FixtureRequest
) -> None:
    name = re.sub(r"\W+", "-", request.node.callspec.id).strip("-")
    model = ("--model.preset", "none", "--model.path", str(user / "model"))
    up = [STREAMRL, "up", str(ROOT / "configs/quickstart.toml"), "--name", name, *model, *SYNCHRONOUS]
    output = ended(up, user, environment)
    run = Finished(0, output, user / "runs" / name)
    assert "products of rows:" in output, output
    told = ended(
        [sys.executable, "-m", "streamrl.reference", run.folder / "config.toml"],
        user,
        {**environment, "PYTHONPATH": str(user)},
    )
    assert re.findall(r"weights (\w+)", told) == [step["weights/digest"] for step in run.metrics()]
    assert len({step["weights/digest"] for step in run.metrics()}) == 3
    rung = re.search(r'"rung":"(\w+)"', (run.folder / FILE).read_text())
    assert rung is not None
    print(f"{request.node.callspec.id}: {rung[1]}")
    if environment.get("MKL_CBWR") == "COMPATIBLE":
        assert rung[1] != "plain"
