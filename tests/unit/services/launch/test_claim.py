"""Claiming a run folder: new, resumed, finished, refused; and the lock that goes with it."""

import errno
import os
from pathlib import Path

import msgspec
import pytest

from streamrl.config import dump
from streamrl.config.schema.learner import CriticConfig, LearnerConfig
from streamrl.config.schema.run import Config, GatewayConfig, ModelConfig, RewardConfig
from streamrl.config.schema.sandbox import SandboxConfig
from streamrl.errors import ResourceError, RunFolderError
from streamrl.services.launch.claim import Claim, claim
from streamrl.services.run import run_lock
from streamrl.services.run.folder import Launch, RunFolder, RunState, explained, find_run, write_whole
from streamrl.services.run.liveness import ProcessId
from streamrl.services.run.run_lock import RunLock

NOBODY = ProcessId(2**22 - 1, 1)


def config(folder: Path, *, steps: int = 100, name: str = "run", seed: int = 0) -> Config:
    return Config(
        name=name,
        runs=str(folder / "runs"),
        seed=seed,
        model=ModelConfig(preset="tiny-qwen3"),
        learner=LearnerConfig(steps=steps),
    )


def claimed(folder: Path, **keys: object) -> Claim:
    """A claim that is given up again, as by a launch that ended."""
    taken = claim(config(folder, **keys))
    if taken.lock is not None:
        taken.lock.abandon()
    return taken


def test_a_new_folder_has_a_readable_config_a_private_key_and_no_secret_in_its_record(tmp_path: Path) -> None:
    run = claimed(tmp_path).run
    assert claimed(tmp_path).config.learner.steps == 100
    assert len(run.key()) == 32
    assert run.key_path.stat().st_mode & 0o777 == 0o600
    assert run.key().hex() not in (run.path / "run.json").read_text()
    assert list(run.working_path.iterdir()) == []
    assert run.shared_memory_prefix == f"streamrl-{run.run_id}"


def with_paths(folder: Path, text: str) -> Config:
    """A configuration whose model, critic and certificate are given from the current folder."""
    given = config(folder)
    gateway = GatewayConfig(tls_cert=f"{text}/cert.pem", tls_key=f"{text}/key.pem")
    learner = msgspec.structs.replace(given.learner, critic=CriticConfig(path=f"{text}/critic"))
    return msgspec.structs.replace(given, model=ModelConfig(path=f"{text}/model"), learner=learner, gateway=gateway)


def test_files_and_folders_are_kept_by_their_full_names_for_parts_that_work_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    taken = claim(with_paths(tmp_path, "hub"))
    assert taken.lock is not None
    taken.lock.abandon()
    assert taken.config == with_paths(tmp_path, f"{tmp_path}/hub")
    assert f'"{tmp_path}/hub/critic"' in taken.run.config_path.read_text()


def test_a_run_of_an_earlier_release_that_has_a_path_as_it_was_given_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = msgspec.structs.replace(config(tmp_path), reward=RewardConfig(function="code"))
    relative = msgspec.structs.replace(given, sandbox=SandboxConfig(python=".venv/bin/python"))
    for state in (RunState.NEW, RunState.INTERRUPTED):
        taken = claim(relative)
        assert taken.lock is not None
        taken.lock.abandon()
        assert taken.state is state
        write_whole(taken.run.config_path, dump(relative).encode())
    with pytest.raises(RunFolderError, match=r"differs in sandbox\.python\."):
        claim(msgspec.structs.replace(given, sandbox=SandboxConfig(python="other/python")))


def test_each_resume_raises_the_incarnation_and_keeps_the_run_id(tmp_path: Path) -> None:
    first, second, third = (claimed(tmp_path) for _ in range(3))
    assert [taken.run.incarnation for taken in (first, second, third)] == [0, 1, 2]
    assert first.run.run_id == third.run.run_id
    assert (first.state, second.state) == (RunState.NEW, RunState.INTERRUPTED)


def test_a_resume_says_whether_the_data_set_may_be_another_one_and_the_next_one_says_it_anew(tmp_path: Path) -> None:
    told = []
    for accepted in (False, True, False):
        taken = claim(config(tmp_path), accept_changed_data=accepted)
        assert taken.lock is not None
        taken.lock.abandon()
        told.append(RunFolder.open(taken.run.path).record.accept_changed_data)
    assert told == [False, True, False]


def test_a_second_claim_of_a_live_run_names_the_pid_and_the_ways_out(tmp_path: Path) -> None:
    taken = claim(config(tmp_path))
    with pytest.raises(RunFolderError, match=rf"in use by process {os.getpid()}.*streamrl down.*--fresh"):
        claim(config(tmp_path))
    assert taken.lock is not None
    taken.lock.abandon()
    claimed(tmp_path)


def test_a_changed_configuration_is_refused_by_key_and_nothing_changes(tmp_path: Path) -> None:
    run = claimed(tmp_path).run
    before = (run.path / "run.json").read_bytes()
    changed = msgspec.structs.replace(config(tmp_path, steps=7, seed=1), reward=RewardConfig(workers=2))
    with pytest.raises(RunFolderError, match=r"it differs in .*--fresh or --name") as refused:
        claim(changed)
    for key in ("seed", "learner.steps", "reward.workers"):
        assert key in str(refused.value)
    assert (run.path / "run.json").read_bytes() == before


def test_a_moved_runs_folder_is_no_changed_configuration(tmp_path: Path) -> None:
    claimed(tmp_path)
    (tmp_path / "moved").mkdir()
    (tmp_path / "runs").rename(tmp_path / "moved" / "runs")
    assert claimed(tmp_path / "moved").state is RunState.INTERRUPTED


def test_fresh_takes_the_first_free_name(tmp_path: Path) -> None:
    names = []
    for _ in range(3):
        taken = claim(config(tmp_path, steps=len(names) + 1), fresh=True)
        assert taken.lock is not None
        taken.lock.abandon()
        names.append((taken.run.name, taken.run.path.name, taken.config.name))
    assert names == [("run",) * 3, ("run-2",) * 3, ("run-3",) * 3]


def test_a_finished_run_is_claimed_as_finished_without_a_lock(tmp_path: Path) -> None:
    run = claimed(tmp_path).run
    run.write_summary({"eval_after": 0.9})
    finished = claim(config(tmp_path))
    assert (finished.state, finished.lock) == (RunState.FINISHED, None)
    assert finished.run.summary() == {"eval_after": 0.9}
    assert run.state() is not RunState.INTERRUPTED


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"schema": 99}', "schema 99, and this streamrl reads schema 1"),
        (b"{", "is damaged"),
        (b"[]", "holds no object"),
        (b'{"schema": 1, "run_id": 5}', "is damaged"),
    ],
)
def test_a_record_of_another_schema_or_damaged_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    run = claimed(tmp_path).run
    (run.path / "run.json").write_bytes(content)
    with pytest.raises(RunFolderError, match=says) as refused:
        claim(config(tmp_path))
    assert "--fresh" in str(refused.value)


def test_a_folder_that_is_no_run_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "runs" / "run").mkdir(parents=True)
    (tmp_path / "runs" / "run" / "thesis.tex").touch()
    with pytest.raises(RunFolderError, match=r"holds thesis\.tex"):
        claim(config(tmp_path))


def test_a_half_made_folder_is_as_good_as_new(tmp_path: Path) -> None:
    run = claimed(tmp_path).run
    (run.path / "run.json").unlink()
    assert claimed(tmp_path).state is RunState.NEW


def test_a_file_in_the_way_of_the_runs_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(RunFolderError, match="a file is in its way"):
        claim(config(tmp_path))


def test_a_full_disk_at_the_claim_is_a_resource_error_that_names_the_path(tmp_path: Path) -> None:
    (tmp_path / "runs" / "run").mkdir(parents=True)
    # Every write to this device fails as on a full disk.
    (tmp_path / "runs" / "run" / ".config.toml.new").symlink_to("/dev/full")
    with pytest.raises(ResourceError, match=r"cannot write .*config\.toml: No space left.*free some space") as full:
        claim(config(tmp_path))
    assert full.value.exit_code == 3
    assert run_lock.wait_until_free(tmp_path / "runs" / "run" / "lock", 1.0)


def test_an_error_that_is_none_of_the_disks_fullness_stays_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="odd") as error, explained(tmp_path):
        raise OSError(errno.EIO, "odd")
    assert not isinstance(error.value, ResourceError)


def test_an_earlier_failure_is_kept_and_out_of_the_way(tmp_path: Path) -> None:
    run = claimed(tmp_path).run
    run.failure_path.write_text("{}")
    assert run.state() is not RunState.NEW
    resumed = claimed(tmp_path)
    assert resumed.state is RunState.FAILED
    assert (run.path / "failure.0.json").exists()
    assert not run.failure_path.exists()


def test_the_state_says_who_lives(tmp_path: Path) -> None:
    run = claimed(tmp_path).run
    launch = Launch(owner=NOBODY, watcher=NOBODY, runtime="/x", control="/x/c", started_ns=1)
    run.start_launch(launch)
    assert run.owner() is None
    run.start_launch(msgspec.structs.replace(launch, owner=ProcessId.own()))
    assert run.owner() == ProcessId.own()
    assert RunFolder.open(run.path).record == run.record


def test_a_pid_with_another_start_is_another_process() -> None:
    own = ProcessId.own()
    assert own.is_alive()
    assert not ProcessId(own.pid, own.start_ticks + 1).is_alive()
    assert not ProcessId(own.pid, own.start_ticks + 1).signal(0)
    assert not ProcessId.of(NOBODY.pid).is_alive()


def test_runs_are_found_by_path_by_name_and_by_newest(tmp_path: Path) -> None:
    claimed(tmp_path, name="one")
    claimed(tmp_path, name="two")
    runs = tmp_path / "runs"
    os.utime(runs / "one" / "run.json", ns=(2**62, 2**62))
    assert find_run(None, runs).name == "one"
    assert find_run("two", runs).name == "two"
    assert find_run(str(runs / "two"), tmp_path).name == "two"
    with pytest.raises(RunFolderError, match=r"'three'.*one, two"):
        find_run("three", runs)
    with pytest.raises(RunFolderError, match="no run in"):
        find_run(None, tmp_path)


def test_a_lock_passes_to_who_inherits_it_and_is_free_after_the_last(tmp_path: Path) -> None:
    lock = RunLock.take(tmp_path / "lock")
    assert lock is not None
    inherited = os.dup(lock.fd)
    lock.release()
    assert RunLock.take(tmp_path / "lock") is None
    assert not run_lock.wait_until_free(tmp_path / "lock", 0.05)
    os.close(inherited)
    assert run_lock.wait_until_free(tmp_path / "lock", 5.0)
    # Neither who gave up waiting nor who looked keeps it.
    again = RunLock.take(tmp_path / "lock", 5.0)
    assert again is not None
    again.release()
    assert run_lock.wait_until_free(tmp_path / "none", 0.0)


def test_a_whole_write_replaces_and_leaves_no_second_file(tmp_path: Path) -> None:
    write_whole(tmp_path / "a", b"old")
    write_whole(tmp_path / "a", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == b"new"
