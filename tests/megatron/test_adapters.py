"""Adapters on megatron-core are those of FSDP2: names, values at the beginning, losses, states, in every layout."""

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from support.learner.rank_processes import run_ranks
from support.megatron.adapter_core_rank import prepare
from support.megatron.adapter_rank import CASES
from support.repository import TESTS

from streamrl.models.adapters.names import PEFT_PREFIX
from streamrl.models.load import load_model
from streamrl.services.commands.exchange.export import export_newest
from streamrl.services.run.folder import RunFolder
from streamrl.weights.tensors import weights_digest

PROGRAM = TESTS / "support" / "megatron" / "adapter_rank.py"
CORE_PROGRAM = TESTS / "support" / "megatron" / "adapter_core_rank.py"
EXACT = [name for name, case in CASES.items() if not name.startswith("bfloat16")]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder: Path = tmp_path_factory.mktemp("adapters")
    return run_ranks(PROGRAM, folder, 2, timeout_s=580)


@pytest.mark.parametrize("name", CASES)
def test_adapters_begin_as_under_fsdp_and_nothing_else_is_trained(name: str, ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        found = rank["against_fsdp"][name]
        assert found["names"], "names of a version or of a state, or their order"
        assert found["begun"], "the first values are not those of the same seed under FSDP2"
        assert found["digests"], "the merged model, or the base"
        assert found["facts"], "what a checkpoint says of its adapters"
        assert found["published"], "a version is not the float32 adapters of the state"
        assert found["untouched"], "a weight of the model has a gradient, or a buffer for one"
        assert found["moved"] > 5e-3


@pytest.mark.parametrize("name", EXACT)
def test_a_layout_has_the_losses_and_updates_of_fsdp(name: str, ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        found = rank["against_fsdp"][name]
        assert found["losses"] <= 3e-6
        assert found["metrics"] <= 1.5e-5
        assert found["apart"] <= 3e-5


@pytest.mark.parametrize("name", [name for name in CASES if name not in EXACT])
def test_in_bfloat16_losses_are_those_of_fsdp_but_for_its_roundings(name: str, ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["against_fsdp"][name]["losses"] <= 5e-3


def test_a_state_goes_on_in_another_layout_and_backend(ranks: list[dict[str, Any]]) -> None:
    """TP2 to PP2 to one rank, and by FSDP2 back to PP2; what is loaded is what was saved, to the bit."""
    for rank in ranks:
        assert rank["resumes"]["same_layout"], "two steps after a resume are not those without one, to the bit"
        assert all(rank["resumes"]["loaded"])
        assert max(rank["resumes"]["apart"]) <= 1e-5


def test_what_has_no_adapters_and_a_state_of_something_else_are_refused_by_name(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        target, whole, other = rank["refused"]
        assert "learner.lora.targets: down_proj is no linear layer of this model's decoder; it has q_proj" in target
        assert "the learner state is of adapters None, and this learner trains {'rank': 3" in whole
        assert "the learner state is of adapters {'rank': 3, 'alpha': 6.0, 'base': 'another'}" in other


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """The folder of the runs, and what each rank found."""
    folder: Path = tmp_path_factory.mktemp("adapter_core")
    (folder / "runs").mkdir()
    prepare(folder / "runs")
    return folder / "runs", run_ranks(CORE_PROGRAM, folder, 2, folder / "runs", timeout_s=500)


@pytest.mark.parametrize("layout", ["tensor", "pipeline"])
def test_a_run_publishes_trains_and_saves_the_adapters_of_fsdp(
    layout: str, runs: tuple[Path, list[dict[str, Any]]]
) -> None:
    first, second = runs[1]
    theirs, ours = first["fsdp"], first[layout]
    assert ours["versions"][0] == theirs["versions"][0], "the first version, its base, and what a replica merges"
    assert ours["versions"][1]["base"] == theirs["versions"][1]["base"]
    assert ours["versions"][1]["names"] == theirs["versions"][1]["names"]
    assert ours["versions"][1]["digest"] != ours["versions"][0]["digest"]
    assert second[layout]["versions"] == [None, None, None]
    assert list(ours["saved"]) == list(theirs["saved"])
    pairs = zip(ours["metrics"], theirs["metrics"], strict=True)
    assert max(abs(mine[name] - other[name]) for mine, other in pairs for name in other) <= 1e-4


@pytest.mark.parametrize("run", ["fsdp", "tensor", "pipeline"])
def test_a_checkpoint_of_adapters_goes_on_in_another_layout_or_backend(
    run: str, runs: tuple[Path, list[dict[str, Any]]]
) -> None:
    for rank in runs[1]:
        found = rank[run]
        assert found["checkpoint"] == 2
        assert found["loaded"] == found["saved"], "weights and moments, tensor by tensor"
        theirs = rank["fsdp"]["resumed"]
        assert max(abs(found["resumed"][name] - theirs[name]) for name in theirs) <= 1e-4
    versions = runs[1][0][run]["versions"]
    assert versions[2] == versions[1], "what is published first behind a resume, and its base"


@pytest.mark.parametrize("run", ["tensor", "pipeline"])
def test_exports_are_the_model_that_is_served_and_the_adapters_alone(
    run: str, runs: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    found = runs[1][0][run]
    folder = RunFolder.open(runs[0] / run)
    export_newest(folder, tmp_path / "hf")
    export_newest(folder, tmp_path / "peft", "peft")
    names = [name for name, _ in load_model(runs[0] / "model", "float32").named_parameters()]
    for exported in (tmp_path / "hf", folder.export_path):
        tensors = load_file(exported / "model.safetensors")
        assert weights_digest((name, tensors[name]) for name in names) == found["versions"][1]["served"]
    adapters = load_file(tmp_path / "peft" / "adapter_model.safetensors")
    assert sorted(adapters) == sorted(PEFT_PREFIX + name for name in found["versions"][1]["names"])
