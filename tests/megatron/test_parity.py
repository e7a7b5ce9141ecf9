"""Every layout is one process with the whole Hugging Face model: log-probs, metrics, gradients, three updates, also
where tokens go to experts that rows name and experts are balanced; and the weights that go out are those that came in,
to the bit.

On a CPU, by gloo and a shim for megatron-core: none of it says anything of NCCL.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.learner.rank_processes import run_ranks
from support.megatron.layouts import CASES
from support.repository import TESTS

PROGRAM = TESTS / "support" / "megatron" / "parity_rank.py"


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[dict[str, Any]]]:
    """What each rank of a layout found. All layouts of as many ranks are computed at once."""

    @cache
    def of_world(world: int) -> list[dict[str, Any]]:
        folder: Path = tmp_path_factory.mktemp(f"world_{world}")
        return run_ranks(PROGRAM, folder, world, timeout_s=500)

    return lambda name: [rank[name] for rank in of_world(CASES[name].world)]


@pytest.mark.parametrize("name", CASES)
def test_a_layout_is_one_process_with_the_whole_model(name: str, told: Callable[[str], list[dict[str, Any]]]) -> None:
    for found in told(name):
        assert found["packs"] > 1
        assert found["names"], "the order of the weights"
        assert found["equal"], "a weight that came out is not the one that went in"
        assert found["logprobs"] <= 1e-5
        assert found["metrics"] <= 1.5e-5
        assert found["gradients"] <= 1.5e-5
        assert found["weights"] <= 1.5e-5
        assert found["moments"] <= 1.5e-5
        assert ("router/replayed_share" in found["told"]) == CASES[name].routed
