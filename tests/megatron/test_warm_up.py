"""A supervised warm-up on megatron-core, and the steps behind it, are those of FSDP2."""

from pathlib import Path
from typing import Any

import pytest
from support.learner.rank_processes import run_ranks
from support.repository import TESTS

PROGRAM = TESTS / "support" / "megatron" / "warm_up_rank.py"
LAYOUTS = ("tensor", "pipeline", "data")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder: Path = tmp_path_factory.mktemp("warm_up")
    return run_ranks(PROGRAM, folder, 2, timeout_s=500)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_warm_up_and_twenty_steps_have_the_losses_of_fsdp(layout: str, ranks: list[dict[str, Any]]) -> None:
    theirs = ranks[0]["fsdp"]["losses"]
    assert len(theirs) == 32
    assert theirs[11] < 0.8 * theirs[0], "it learns"
    for rank in ranks:
        assert max(abs(one - other) for one, other in zip(rank[layout]["losses"], theirs, strict=True)) <= 1e-4


@pytest.mark.parametrize("layout", [*LAYOUTS, "bfloat16", "bfloat16_shared_out"])
def test_the_steps_begin_with_the_float32_weights_that_a_warm_up_leaves_and_no_moments(
    layout: str, ranks: list[dict[str, Any]]
) -> None:
    for rank in ranks:
        assert rank[layout]["weights_left"]
        assert rank[layout]["begun_with"] == ["model"]
        assert rank[layout]["steps_done"] == 0
