"""8-bit moments over ranks: two make what one makes, and hand them to one and back as they are."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.learner.rank_processes import run_ranks

pytest.importorskip("torchao", reason="pip install -e '.[low-bit]'")

PROGRAM, SPREAD = (Path(__file__).with_name(name) for name in ("low_bit_rank.py", "low_bit_tensor_rank.py"))


class Runs(NamedTuple):
    """What the ranks found: of two, of one that goes on from what those saved, and of two that go on from its."""

    two: list[dict[str, Any]]
    one: dict[str, Any]
    back: list[dict[str, Any]]


def runs_of(program: Path, folder: Path) -> Runs:
    two = run_ranks(program, folder, 2, folder)
    (one,) = run_ranks(program, folder, 1, folder)
    (folder / "store_2").unlink()
    return Runs(two, one, run_ranks(program, folder, 2, folder))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return runs_of(PROGRAM, tmp_path_factory.mktemp("low_bit"))


@pytest.mark.parametrize("model", ["policy", "critic"])
def test_on_two_shares_one_rank_and_two_leave_equal_weights_and_moments(model: str, runs: Runs) -> None:
    assert {rank["first"][model] for rank in runs.two} == {runs.one["first"][model]}
    assert runs.two[0]["first"]["norms"] == runs.one["first"]["norms"]


@pytest.mark.parametrize("model", ["policy", "critic"])
def test_a_checkpoint_goes_from_two_ranks_to_one_and_back_and_each_goes_on_to_the_bit(model: str, runs: Runs) -> None:
    went_on = runs.two[0]["then"]
    assert went_on[model] != runs.two[0]["first"][model]
    for rank in (*runs.two, runs.one, *runs.back):
        assert rank["then"][model] == went_on[model]
        assert rank["then"]["norms"] == went_on["norms"]


@pytest.fixture(scope="module")
def spread(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """The same of ranks that each layer is spread over."""
    return runs_of(SPREAD, tmp_path_factory.mktemp("spread"))


def test_spread_layers_train_as_one_rank_does(spread: Runs) -> None:
    """To the rounding of the gradients, which may move a moment to the next of its values."""
    for rank in spread.two:
        assert len(rank["metrics"]) == 6
        for got, expected in zip(rank["metrics"], spread.one["metrics"], strict=True):
            for key in ("loss/policy", "grad/norm", "mismatch/kl"):
                assert got[key] == pytest.approx(expected[key], rel=1e-3, abs=1e-4), key


def test_a_checkpoint_of_spread_layers_goes_to_one_rank_and_back_to_the_bit(spread: Runs) -> None:
    saved = spread.two[0]["saved"]
    assert spread.one["loaded"] == saved
    for rank, before in zip(spread.back, spread.two, strict=True):
        assert rank["loaded"] == saved
        assert rank["after"] == before["after"] != saved


def test_moments_that_are_kept_otherwise_when_layers_are_spread_are_refused_with_the_key(spread: Runs) -> None:
    assert spread.one["refused"].startswith(
        "the learner state has exp_avg/model.layers.0.mlp.down_proj.weight in torch.float32, and this optimizer keeps "
        "it in torch.uint8: "
    )
    assert "learner.tensor_parallel" in spread.one["refused"]
