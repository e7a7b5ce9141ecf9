"""Claims of a run that has a second place: new, gone on with from there, refused."""

import shutil
from pathlib import Path

import msgspec
import pytest

from streamrl.config.schema.learner import LearnerConfig
from streamrl.config.schema.run import CheckpointConfig, Config, ModelConfig
from streamrl.errors import ConfigError, RunFolderError
from streamrl.services.launch.claim import Claim, claim
from streamrl.services.run.folder import RunState
from streamrl.services.storage.place import require_stores
from streamrl.storage.open import open_store
from streamrl.storage.owners import newest_owner
from streamrl.storage.version_sets import VersionSets
from streamrl.types import Version


def config(folder: Path, *, runs: str = "runs", steps: int = 100, place: str | None = "place") -> Config:
    return Config(
        name="run",
        runs=str(folder / runs),
        model=ModelConfig(preset="tiny-qwen3"),
        learner=LearnerConfig(steps=steps),
        checkpoint=CheckpointConfig(folder=None if place is None else f"file://{folder}/{place}"),
    )


def claimed(config: Config, *, fresh: bool = False) -> Claim:
    """A claim that is given up again, as by a launch that ended."""
    taken = claim(config, fresh=fresh)
    if taken.lock is not None:
        taken.lock.abandon()
    return taken


def store(folder: Path, step: int) -> None:
    """As an upload of this run would: the files of a checkpoint are not looked at here."""
    VersionSets(open_store(f"file://{folder}/place/run")).add(
        Version(0, step), {"checkpoint/x": b"x", "metrics.jsonl": b'{"step":1}\n'}, {}, keep=2
    )


def test_a_new_run_takes_its_place_and_writes_down_no_more_than_it_needs(tmp_path: Path) -> None:
    taken = claimed(config(tmp_path))
    owner = newest_owner(open_store(f"{tmp_path}/place/run"))
    assert owner is not None
    assert taken.state is RunState.NEW
    assert (owner.run_id, owner.folder) == (taken.run.run_id, str(taken.run.path))
    assert owner.token == taken.run.record.store_token != ""
    assert taken.run.key().hex() not in owner.config


def test_a_machine_that_has_only_the_configuration_goes_on_with_the_run(tmp_path: Path) -> None:
    first = claimed(config(tmp_path)).run
    store(tmp_path, 40)
    shutil.rmtree(first.path)
    taken = claimed(config(tmp_path, runs="elsewhere"))
    assert taken.state is RunState.INTERRUPTED
    assert (taken.run.run_id, taken.run.incarnation) == (first.run_id, 1)
    assert taken.run.key() != b""
    assert (taken.run.checkpoints_path / "step_000040" / "x").read_bytes() == b"x"
    assert taken.run.metrics_path.read_text() == '{"step":1}\n'
    assert taken.told == (f"the checkpoint of step 40 comes from file://{tmp_path}/place/run",)


def test_a_folder_that_was_half_made_of_a_place_is_made_anew(tmp_path: Path) -> None:
    first = claimed(config(tmp_path)).run
    store(tmp_path, 40)
    (first.path / "run.json").unlink()
    for name in ("fetched", "start", "queue/ledger"):
        (first.path / name).mkdir(parents=True, exist_ok=True)
    (first.path / "queue/ledger/000007.log").write_text("half")
    shutil.rmtree(first.logs_path)
    (first.path / "key").unlink()
    run = claimed(config(tmp_path)).run
    assert run.run_id == first.run_id
    assert not (run.path / "queue/ledger/000007.log").exists()
    assert not (run.path / "start").exists()


def test_a_place_of_a_run_that_was_configured_otherwise_is_refused(tmp_path: Path) -> None:
    shutil.rmtree(claimed(config(tmp_path)).run.path)
    with pytest.raises(RunFolderError, match=r"another configuration; it differs in learner\.steps"):
        claimed(config(tmp_path, steps=7))
    assert not (tmp_path / "runs" / "run" / "run.json").exists()


def test_a_place_of_a_run_whose_folder_is_here_is_refused_with_that_folder(tmp_path: Path) -> None:
    first = claimed(config(tmp_path)).run
    with pytest.raises(RunFolderError, match=f"whose folder is {first.path}"):
        claimed(config(tmp_path, runs="elsewhere"))


def test_a_copy_of_a_run_folder_may_not_use_its_place(tmp_path: Path) -> None:
    first = claimed(config(tmp_path)).run
    shutil.copytree(first.path, tmp_path / "elsewhere" / "run")
    with pytest.raises(RunFolderError, match=r"give another checkpoint\.folder, or another name"):
        claimed(config(tmp_path, runs="elsewhere"))
    assert claimed(config(tmp_path)).run.run_id == first.run_id


def test_fresh_goes_on_with_no_run_of_a_place(tmp_path: Path) -> None:
    shutil.rmtree(claimed(config(tmp_path)).run.path)
    with pytest.raises(RunFolderError, match="--fresh goes on with none; give a name that is free there"):
        claimed(config(tmp_path), fresh=True)


def test_a_run_may_be_given_another_place_and_keeps_it(tmp_path: Path) -> None:
    first = claimed(config(tmp_path, place=None))
    assert first.run.record.store_token == ""
    taken = claimed(config(tmp_path, place="later"))
    assert taken.run.run_id == first.run.run_id
    assert taken.config.checkpoint.folder == f"file://{tmp_path}/later"
    assert f"{tmp_path}/later" in taken.run.config_path.read_text()
    assert newest_owner(open_store(f"{tmp_path}/later/run")) is not None


def test_what_the_place_has_ahead_of_a_folder_comes_first(tmp_path: Path) -> None:
    claimed(config(tmp_path))
    store(tmp_path, 40)
    assert claimed(config(tmp_path)).told == (f"the checkpoint of step 40 comes from file://{tmp_path}/place/run",)


def test_a_place_that_cannot_be_used_is_told_with_its_key_before_anything_is_made(tmp_path: Path) -> None:
    (tmp_path / "place").write_text("a file")
    with pytest.raises(ConfigError, match=r"checkpoint\.folder: "):
        require_stores(config(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["place"]


def test_what_a_place_has_is_told(tmp_path: Path) -> None:
    assert require_stores(config(tmp_path)) == [
        f"checkpoints: also in file://{tmp_path}/place/run, which has nothing yet"
    ]
    run = claimed(config(tmp_path)).run
    store(tmp_path, 40)
    (line,) = require_stores(config(tmp_path))
    assert line.endswith(f"has the checkpoint of step 40, of run {run.run_id}")
    assert require_stores(config(tmp_path, place=None)) == []


def test_a_place_given_as_a_path_is_kept_by_its_full_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    named = msgspec.structs.replace(config(tmp_path), checkpoint=CheckpointConfig(folder="place"))
    assert claimed(named).config.checkpoint.folder == str(tmp_path / "place")
