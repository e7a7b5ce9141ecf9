"""What starts a run and leads it has no use for torch: seconds of each start, and hundreds of MiB that nobody needs."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "peft", "duckdb", "sympy")


@pytest.mark.parametrize(
    "module",
    [
        "services.launch.owner",
        "services.launch.system",
        "services.controller.actor",
        "services.queue.actor",
        "services.weights.actor",
        "services.rollout.actor",
        "services.reward.actor",
        "services.gateway.actor",
        "services.weights.run_node",
        "services.weights.node",
    ],
)
def test_a_part_without_a_model_does_not_import_torch(module: str) -> None:
    script = f"import sys, {module}; sys.exit(str([name for name in {HEAVY!r} if name in sys.modules]))"
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "[]"
