"""`streamrl check --world-size`: layouts of published models as a command prints them, and those that cannot be."""

import json
from pathlib import Path

import pytest
from support.megatron.published import write_published
from support.repository import ROOT

from streamrl.services.cli.main import run_app

CONFIG = """
[task]
name = "arithmetic"
[model]
path = "{path}"
dtype = "bfloat16"
[rollout]
engine = "vllm"
[learner]
backend = "megatron"
device = "cuda"
[learner.megatron]
tensor_parallel = 4
sequence_parallel = true
"""
EXPERTS = ["--learner.megatron.expert_parallel", "8", "--learner.megatron.recompute", "layers"]


def command(tmp_path: Path, name: str, ranks: int, *more: str, **changes: object) -> list[str]:
    folder = write_published(tmp_path / "model", name, **changes)
    path = tmp_path / "run.toml"
    path.write_text(CONFIG.format(path=folder))
    return ["check", str(path), "--world-size", str(ranks), *more]


def test_ranks_and_what_each_keeps_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(command(tmp_path, "30B-A3B", 32, *EXPERTS)) == 0
    first, stage = capsys.readouterr().out.splitlines()
    parts = "8 data x 1 pipeline x 4 tensor parallel, the experts of a layer over 8 x 1; 48 layers a stage"
    assert first.endswith(f"run.toml: 32 ranks = {parts}")
    assert stage.startswith("stage 0: ")
    assert "of 80 GiB (weights 7.5 GiB, gradients 15.0 GiB, optimizer 14.2 GiB, activations" in stage


def test_ranks_that_have_a_stretch_of_a_pack_each_are_told_and_keep_less(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = []
    for stretches in ("1", "2"):
        folder = tmp_path / stretches
        folder.mkdir()
        asked = [*command(folder, "30B-A3B", 32, *EXPERTS), "--learner.megatron.context_parallel", stretches]
        assert run_app(asked) == 0
        assert ("x 4 tensor x 2 context parallel" in capsys.readouterr().out) == (stretches == "2")
        assert run_app([*asked, "--json"]) == 0
        kept.append(json.loads(capsys.readouterr().out)["stages"][0]["activations"])
    assert kept[1] < 0.6 * kept[0]


def test_stages_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--learner.megatron.pipeline_parallel", "2", "--gpu-gib", "141", "--json"]
    assert run_app(command(tmp_path, "235B-A22B", 256, *EXPERTS, *more)) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["world_size"], said["gpu_bytes"]) == (256, 141 * 2**30)
    assert [one["stage"] for one in said["stages"]] == [0, 1]
    assert all(one["total"] < said["gpu_bytes"] for one in said["stages"])


def test_a_rank_that_does_not_fit_its_gpu_says_what_it_keeps_and_the_ways_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_app(command(tmp_path, "8B", 8, "--gpu-gib", "24")) == 3
    said = capsys.readouterr().err
    assert "a rank of stage 0 keeps 47.2 GiB, and a GPU has 24 GiB (weights 3.8 GiB" in said
    assert 'set learner.megatron.recompute = "layers", a lower learner.micro_batch_tokens or more of' in said


@pytest.mark.parametrize(
    ("name", "ranks", "more", "changes", "said"),
    [
        ("8B", 6, [], {}, "6 ranks are no multiple of the 4 that one model takes"),
        (
            "235B-A22B",
            256,
            ["--learner.megatron.pipeline_parallel", "8"],
            {},
            "94 layers are not shared out evenly to 8",
        ),
        ("8B", 512, [], {"model_type": "deepseek_v3"}, 'no mapping of weights for models of type "deepseek_v3"'),
        ("8B", 8, ["--gpu-gib", "0"], {}, "--gpu-gib is 0; give the memory of a GPU in GiB"),
        ("8B", 0, [], {}, "learner.num_workers"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    name: str,
    ranks: int,
    more: list[str],
    changes: dict[str, str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_app(command(tmp_path, name, ranks, *more, **changes)) == 2
    assert said in capsys.readouterr().err


def test_it_is_of_layouts_of_megatron_core(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["check", str(ROOT / "configs/quickstart.toml"), "--world-size", "2"]) == 2
    assert 'learner.backend = "megatron", and it is "fsdp"; leave it out' in capsys.readouterr().err
