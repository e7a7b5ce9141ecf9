"""A critic and PRIME's implicit reward model on megatron-core are those of FSDP2: scores, gradients, three steps."""

from pathlib import Path
from typing import Any

import pytest
from support.learner.rank_processes import run_ranks
from support.megatron.auxiliary_rank import KINDS
from support.repository import TESTS

PROGRAM = TESTS / "support" / "megatron" / "auxiliary_rank.py"
CASES = [(kind, layout) for kind, (_, layouts) in KINDS.items() for layout in layouts]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder: Path = tmp_path_factory.mktemp("auxiliary")
    return run_ranks(PROGRAM, folder, 2, timeout_s=500)


@pytest.mark.parametrize(("kind", "layout"), CASES)
def test_a_model_beside_the_policy_is_that_of_fsdp(kind: str, layout: str, ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        found = rank[f"{kind}_{layout}"]
        assert found["names"], "the names of the state or of the metrics"
        assert found["scores"] <= 1e-5
        assert found["metrics"] <= 1e-5
        assert found["gradients"] <= 1e-5
        assert found["weights"] <= 1e-5
        assert found["head"] is None or found["head"] > 1e-3, "the head learns"


@pytest.mark.parametrize("kind", KINDS)
def test_its_state_goes_on_in_another_layout_or_backend(kind: str, ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        for one in rank[f"{kind}_on"]:
            assert one["equal"], "what was loaded is not what was saved"
            assert one["bytes"], "state_bytes is another number than the bytes of the state"
            theirs = rank[f"{kind}_on"][0]["metrics"]
            assert max(abs(one["metrics"][name] - theirs[name]) for name in theirs) <= 1e-4


@pytest.mark.parametrize("layout", ["tensor", "pipeline"])
def test_a_value_that_is_not_finite_stops_all_ranks_before_anything_is_applied(
    layout: str, ranks: list[dict[str, Any]]
) -> None:
    for rank in ranks:
        assert "learner step 1: a value of the critic is not finite" in rank["broken"][layout]
        assert "nothing of the step was applied" in rank["broken"][layout]
