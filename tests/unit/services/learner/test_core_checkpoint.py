"""What the learner commits, and the proof that a resumed one holds it: weights, moments, what was published."""

from contextlib import suppress
from pathlib import Path

import pytest
import torch
from support.learner.probe_learner import STEPS, built, learn

from streamrl.config.schema.learner import LearnerConfig, OptimizerConfig
from streamrl.config.schema.run import CheckpointConfig, Config, ModelConfig
from streamrl.errors import DataError
from streamrl.learner.checkpoint.checkpoint import CheckpointInfo, find_newest
from streamrl.learner.checkpoint.digest import tensor_digest
from streamrl.types import Version

CONFIG = Config(
    model=ModelConfig(preset="tiny-qwen3"),
    learner=LearnerConfig(steps=STEPS, optimizer=OptimizerConfig(lr=1e-3, warmup_steps=1)),
    checkpoint=CheckpointConfig(keep=1),
)


def newest(folder: Path) -> CheckpointInfo:
    info = find_newest(folder / "checkpoints").newest
    assert info is not None
    return info


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with the checkpoint of three steps."""
    folder = tmp_path_factory.mktemp("trained")
    learn(CONFIG, folder)
    return folder


def test_a_resumed_learner_holds_every_moment_that_was_saved(trained: Path) -> None:
    saved = {name: digest for entry in newest(trained).manifest.files for name, digest in entry.tensors.items()}
    with built(CONFIG, trained) as core:
        held = {name: tensor_digest(tensor) for name, tensor in core._backend.state_tensors()}
        assert core.step == STEPS
        assert core.state_bytes() == sum(tensor.nbytes for _, tensor in core._backend.state_tensors())
    assert held == saved
    kinds = {name.partition("/")[0] for name in saved}
    assert kinds == {"model", "exp_avg", "exp_avg_sq"}
    assert len(set(saved.values())) == len(saved)


@pytest.mark.parametrize("kind", ["model", "exp_avg", "exp_avg_sq"])
def test_a_tensor_that_is_lost_on_its_way_into_the_learner_is_named(
    kind: str, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [name for entry in newest(trained).manifest.files for name in entry.tensors]
    lost = next(name for name in names if name.startswith(f"{kind}/"))
    real = CheckpointInfo.tensor

    def losing(info: CheckpointInfo, name: str) -> torch.Tensor:
        tensor = real(info, name)
        return torch.zeros_like(tensor) if name == lost else tensor

    monkeypatch.setattr(CheckpointInfo, "tensor", losing)
    with pytest.raises(DataError, match=rf"1 tensors .*the first of them {lost}"), built(CONFIG, trained):
        pass


def test_a_checkpoint_names_the_version_that_was_published_and_the_place_in_the_ledger(tmp_path: Path) -> None:
    with built(CONFIG, tmp_path) as core:
        core.incarnation = 4
        written = core.publish(core.snapshot_weights())
        assert written is not None
        core.save()
    info = newest(tmp_path)
    assert info.version == Version(4, 0)
    assert info.ledger_position == 0
    assert info.extra["published"] == {"step": 0, "version": "4.0", "digest": written.manifest.digest}


def test_a_resumed_learner_publishes_the_weights_that_were_published_before_or_nothing(tmp_path: Path) -> None:
    with built(CONFIG, tmp_path) as core:
        before = core.publish(core.snapshot_weights())
        core.save()
    with built(CONFIG, tmp_path) as core:
        core.incarnation = 1
        again = core.publish(core.snapshot_weights())
        assert before is not None
        assert again is not None
        assert again.manifest.digest == before.manifest.digest
        assert again.manifest.version == Version(1, 0)
    with built(CONFIG, tmp_path) as core:
        core.incarnation = 2
        with torch.no_grad():
            next(iter(core._policy.shards.values())).add_(1e-3)
        with pytest.raises(
            DataError, match=rf"version 2\.0 has weights of digest .*version 0\.0 .* {before.manifest.digest}"
        ):
            core.publish(core.snapshot_weights())


def test_a_closed_learner_leaves_no_thread_of_its_group_behind(tmp_path: Path) -> None:
    """A thread that is still at work when the interpreter ends would abort the process after all its work is done."""

    def group_threads() -> int:
        names = []
        for task in Path("/proc/self/task").iterdir():
            with suppress(OSError):  # another test's thread that ends meanwhile
                names.append((task / "comm").read_text())
        return sum("gloo" in name for name in names)

    before = group_threads()
    with built(CONFIG, tmp_path):
        assert group_threads() > before
    assert group_threads() == before
