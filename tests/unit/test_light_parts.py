"""What starts a run and leads it has no use for torch: seconds of each start, and hundreds of MiB that nobody needs."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "peft", "duckdb", "sympy")


@pytest.mark.parametrize(
    "module",
    [
        "streamrl.services.launch.owner",
        "streamrl.services.launch.system",
        "streamrl.services.controller.actor",
        "streamrl.services.queue.actor",
        "streamrl.services.weights.actor",
        "streamrl.services.rollout.actor",
        "streamrl.services.reward.actor",
        "streamrl.services.gateway.actor",
        "streamrl.services.weights.run_node",
        "streamrl.services.weights.node",
    ],
)
def test_a_part_without_a_model_does_not_import_torch(module: str) -> None:
    script = f"import sys, {module}; sys.exit(str([name for name in {HEAVY!r} if name in sys.modules]))"
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "[]"


def test_an_engine_of_the_common_families_imports_no_model_of_transformers() -> None:
    """That takes two seconds, in each replica, at each start."""
    script = (
        "import sys, streamrl.engines.torch.engine, streamrl.models.plain_weights; "
        "sys.exit(str([name for name in ('transformers.modeling_utils', 'torch._dynamo') if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "[]"


def test_an_export_of_all_weights_has_no_use_for_transformers() -> None:
    script = "import sys, streamrl.services.commands.exchange.export; sys.exit(str('transformers' in sys.modules))"
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "False"
