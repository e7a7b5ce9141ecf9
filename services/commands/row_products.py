"""How this machine keeps rows of a product apart, as a replica of a configuration would find it."""

import json
import os
import subprocess
import sys

from streamrl.config import Config
from streamrl.config.estimates.model_facts import ModelFacts
from streamrl.config.estimates.model_of import run_facts
from streamrl.errors import ComponentError
from streamrl.services.actors.process_environment import import_path, variables
from streamrl.services.launch.environment import launch_environment

LIMIT_S = 120.0
"""Of a process that imports torch and multiplies for a second."""


def product_lines(config: Config) -> list[str]:
    """[] where no rows are kept apart on a CPU, or where the model's folder says too little. In a process of its own:
    nothing else of a check needs torch, and MKL reads its mode once. Raises ComponentError where that fails."""
    facts, _ = run_facts(config)
    if not config.rollout.keeps_rows_apart or facts is None:
        return []
    order = json.dumps({"shapes": product_shapes(facts), "dtype": config.model.dtype})
    done = subprocess.run(
        [sys.executable, "-P", "-m", "streamrl.engines.torch.ladder", order],
        env={**launch_environment(os.environ), **variables(config.rollout.threads, import_path(), strict=True)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:]
        raise ComponentError(
            "; ".join([f"measuring products of rows ended its process with exit code {done.returncode}", *last])
        )
    return [done.stdout.strip()]


def product_shapes(facts: ModelFacts) -> list[tuple[int, int]]:
    """[inner, columns] of the weights of a decoder of that size."""
    heads, hidden = facts.num_heads * facts.head_dim, facts.hidden_size
    inner = facts.expert_size or facts.intermediate_size
    qkv = heads + 2 * facts.num_kv_heads * facts.head_dim
    router = [(hidden, facts.num_experts)] if facts.num_experts else []
    return [(hidden, qkv), (heads, hidden), *router, (hidden, 2 * inner), (inner, hidden), (hidden, facts.vocab_size)]
