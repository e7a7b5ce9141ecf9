"""A reference on megatron-core, that stands still, teaches or follows the policy, is that of FSDP2."""

from pathlib import Path
from typing import Any

import pytest
from support.learner.rank_processes import run_ranks
from support.repository import TESTS

PROGRAM = TESTS / "support" / "megatron" / "reference_rank.py"
LAYOUTS = ("tensor", "pipeline", "data")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder: Path = tmp_path_factory.mktemp("references")
    return run_ranks(PROGRAM, folder, 2, timeout_s=500)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["frozen", "teacher", "average"])
def test_steps_under_a_reference_have_the_metrics_of_fsdp(kind: str, layout: str, ranks: list[dict[str, Any]]) -> None:
    theirs = ranks[0][kind]["fsdp"]
    assert theirs[0]["loss/kl"] > 1e-3
    for rank in ranks:
        for ours, other in zip(rank[kind][layout], theirs, strict=True):
            assert ours.keys() == other.keys()
            assert max(abs(ours[name] - other[name]) / max(abs(other[name]), 1.0) for name in other) <= 1e-4


def test_an_average_is_not_one_that_stands_still(ranks: list[dict[str, Any]]) -> None:
    frozen, average = ranks[0]["frozen"]["tensor"], ranks[0]["average"]["tensor"]
    assert [one["loss/kl"] for one in frozen[:2]] == [one["loss/kl"] for one in average[:2]]
    assert frozen[2]["loss/kl"] != average[2]["loss/kl"]


@pytest.mark.parametrize("way", ["tensor_to_pipeline", "data_to_fsdp", "fsdp_to_tensor"])
def test_an_average_goes_on_in_another_layout_or_backend(way: str, ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank[way]["has_average"]
        assert rank[way]["bytes"], "state_bytes is another number than the bytes of the state"
        assert rank[way]["equal"], "what was loaded is not what was saved"
        assert rank[way]["apart"] <= 1e-6
