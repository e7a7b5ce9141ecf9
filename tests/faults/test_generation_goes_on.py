"""What a replica had sampled when it was killed is not lost: another goes on from it, and the run is the same."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from support.queue.trained_groups import trained_groups
from support.runs.live_run import LiveRun, live_run

from streamrl.config.schema.run import ModelConfig
from streamrl.models.load import prepare_model_folder

pytestmark = pytest.mark.ray

NEW_TOKENS, GROUP_SIZE, GROUPS, STEPS = 2500, 4, 2, 2
END = 2

LONG = (
    *("--model.preset", "none", "--rollout.sampling.max_new_tokens", str(NEW_TOKENS)),
    *("--rollout.group_size", str(GROUP_SIZE), "--learner.groups_per_step", str(GROUPS), "--rollout.slots", "16"),
    *("--learner.micro_batch_tokens", "16384", "--rollout.kv_bytes", str(2**27), "--learner.optimizer.lr", "1e-5"),
    *("--learner.steps", str(STEPS), "--eval.max_items", "1", "--eval.every", "1000", "--checkpoint.every", "1000"),
)
SYNCHRONOUS = ("--rollout.replicas", "1", "--learner.max_staleness", "0", "--rollout.update_mode", "drain")


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The option for a model whose rollouts never end by themselves: all have the length that the test chose."""
    folder = tmp_path_factory.mktemp("endless") / "model"
    prepare_model_folder(ModelConfig(preset="tiny-qwen3"), 0, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 4096}))
    (path,) = folder.glob("*.safetensors")
    tensors = load_file(path)
    # One direction that every token has and the end token has not: with tied weights it is never drawn.
    embedding = tensors["model.embed_tokens.weight"]
    embedding[:, 0] = 1.0
    embedding[END, 0] = -1.0
    save_file(tensors, path, metadata={"format": "pt"})
    return ("--model.path", str(folder))


def killed_while_it_samples(run: LiveRun, wanted: int) -> int:
    """Kill a replica once it has written `wanted` tokens of rollouts that still run; what it had written."""
    written: dict[str, int] = {}

    def enough(event: dict[str, Any]) -> bool:
        if event["kind"] == "replicas":
            written.clear()
            written.update({one["name"]: one["tokens_journalled"] for one in event["replicas"] if one["running"]})
        return max(written.values(), default=0) >= wanted

    assert run.read_until(enough), (run.events[-3:], run.end())
    name = max(written, key=written.__getitem__)
    run.replica(name).kill()
    return written[name]


def metrics(folder: Path, *keys: str) -> list[list[Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [[line[key] for key in keys] for line in lines if "loss/policy" in line]


def journals(folder: Path) -> list[Path]:
    return list((folder / "queue/partials").glob("*"))


@pytest.mark.long
def test_invariant_4_a_killed_replicas_rollouts_go_on_and_the_run_is_bit_equal_to_an_undisturbed_one(
    endless: tuple[str, str], user_folder: Path, streamrl_path: Path
) -> None:
    options = (*LONG, *endless, *SYNCHRONOUS)
    with live_run(user_folder, streamrl_path, "undisturbed", *options) as calm:
        code, err = calm.end()
    assert code == 0, err
    with live_run(user_folder, streamrl_path, "goes-on", *options) as run:
        written = killed_while_it_samples(run, wanted=2000)
        assert not run.steps(), "it was to be killed in the first batch"
        code, err = run.end()
    assert code == 0, err
    assert any("restart 1 of 3" in text for text in run.notices())
    keys = ("step", "loss/policy", "grad/norm", "weights/digest", "reward/mean")
    assert metrics(run.folder, *keys) == metrics(calm.folder, *keys)
    summary = json.loads((run.folder / "summary.json").read_text())
    continued = summary["tokens_continued"]
    assert continued >= written
    # Every rollout has the same length, so the books say that nothing of it was sampled twice.
    total = STEPS * GROUPS * GROUP_SIZE * NEW_TOKENS
    generated = [one["generated_tokens"] for one in run.events_of("replicas")[-1]["replicas"]]
    assert generated == [total - continued]
    assert json.loads((calm.folder / "summary.json").read_text())["tokens_continued"] == 0
    assert journals(calm.folder) == journals(run.folder) == []


def test_invariant_3_another_replica_goes_on_under_its_own_version_within_the_bound(
    endless: tuple[str, str], user_folder: Path, streamrl_path: Path
) -> None:
    options = (*LONG, *endless, "--rollout.replicas", "2", "--learner.max_staleness", "2", "--learner.steps", "4")
    with live_run(user_folder, streamrl_path, "other-replica", *options) as run:
        killed_while_it_samples(run, wanted=2000)
        code, err = run.end()
    assert code == 0, err
    summary = json.loads((run.folder / "summary.json").read_text())
    assert summary["tokens_continued"] > 0
    assert summary["staleness_max"] <= 2
    groups = trained_groups(run.folder)
    assert len(groups) == len(set(groups)) == 4 * GROUPS
