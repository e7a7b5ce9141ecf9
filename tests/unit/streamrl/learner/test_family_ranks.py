"""Two ranks train what one rank trains, for models of many families: parameters of any shape are split over them."""

from pathlib import Path
from typing import Any

import pytest
from support.learner.rank_processes import run_ranks

PROGRAM = Path(__file__).with_name("family_rank.py")
FAMILIES = ("gemma3_text", "gpt_oss", "qwen3_moe", "deepseek_v3", "qwen3_5_text", "lfm2", "mamba2", "falcon_h1")
COMPARED = ("loss/policy", "loss/entropy", "grad/norm", "mismatch/kl")

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    """By number of ranks, what each found."""
    folder = tmp_path_factory.mktemp("families")
    return {world: run_ranks(PROGRAM, folder, world) for world in (1, 2)}


def test_every_family_of_the_program_is_compared(runs: dict[int, list[dict[str, Any]]]) -> None:
    assert tuple(runs[1][0]) == FAMILIES


@pytest.mark.parametrize("family", FAMILIES)
def test_two_ranks_train_what_one_does(family: str, runs: dict[int, list[dict[str, Any]]]) -> None:
    (one,), (first, second) = ([rank[family] for rank in runs[world]] for world in (1, 2))
    assert first["digest"] == second["digest"]
    assert first["names"] == one["names"]
    for got, expected in zip(first["metrics"], one["metrics"], strict=True):
        routers = [key for key in expected if "router" in key]
        assert len(routers) == (3 if family == "qwen3_moe" else 0)
        for key in (*COMPARED, *routers):
            assert got[key] == pytest.approx(expected[key], rel=1e-4, abs=1e-5), key
