"""A run that stands still says for whom it waits, shows where its processes are, and goes on when it can."""

import json
import re
import signal
import subprocess
from pathlib import Path

import pytest
from support.rewards import reward_gate
from support.runs.live_run import live_run, prepare
from support.runs.ray_cluster import ray_cluster

from streamrl.services.actors.stack_dump import dump

pytestmark = pytest.mark.ray

SCRIPTED = ("--rollout.engine", "scripted", "--eval.every", "100000", "--warmup.max_steps", "0")
ENDLESS = ("--learner.steps", "100000")
REWARD = ("--reward.function", reward_gate.FUNCTION, "--reward.timeout_s", "200")


@pytest.mark.long
def test_a_reward_that_waits_for_ever_is_named_with_its_stack_and_the_run_goes_on_after_it(
    tmp_path: Path, streamrl_path: Path
) -> None:
    prepare(tmp_path)
    reward_gate.build(tmp_path)
    reward_gate.shut(tmp_path)
    with live_run(tmp_path, streamrl_path, "stalls", *SCRIPTED, *ENDLESS, *REWARD, "--deadlines.stall_s", "3") as run:
        try:
            # On a busy machine the start of a replica may be a stall of its own.
            said = run.read_until(lambda event: "waiting for reward" in event.get("text", ""))
            assert said, (run.events[-3:], run.end())
            own_words, _ = dump(run.folder / "logs/.stacks", None)
            status = subprocess.run(
                [streamrl_path, "status", run.folder, "--json"], capture_output=True, text=True, timeout=120, check=True
            )
        finally:
            reward_gate.reopen(tmp_path)
        assert run.read_until(lambda event: "the run moves again" in event.get("text", "")), (
            run.events[-3:],
            run.end(),
        )
        run.process.send_signal(signal.SIGINT)
        code, err = run.end()
    line = _first(run.notices(), "waiting for reward")
    assert code == 130, err
    assert line.startswith("no progress for 3 s, waiting for reward: the learner waits for rows; queue has 0 groups")
    assert "reward stage has" in line
    assert "workers busy, the oldest sample for" in line
    assert json.loads(status.stdout)["stall"]["text"] in line
    written = (tmp_path / line.rpartition("processes are in ")[2]).read_text()
    parts = ("owner", "controller", "queue", "weights", "learner-0", "rollout-0", "rollout-1", "reward", "reward-child")
    for stacks in (written, own_words):
        assert "waits_in_the_users_code" in stacks
        assert [part for part in parts if f"==== {part}, pid" not in stacks] == []
    assert own_words.count("\nby itself\n") == len(parts)
    assert not (run.folder / "logs/.stacks").exists()


@pytest.mark.long
def test_the_stacks_of_processes_on_other_nodes_are_in_the_same_file(
    tmp_path: Path, streamrl_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(tmp_path)
    reward_gate.build(tmp_path)
    with ray_cluster(tmp_path, 2, {"rollout-node": 1}) as cluster:
        for name, value in cluster.environment.items():
            monkeypatch.setenv(name, value)
        away = ("--ray.address", cluster.address, "--rollout.resources", "{ rollout-node = 1 }")
        stall = ("--deadlines.stall_s", "3")
        with live_run(tmp_path, streamrl_path, "away", *SCRIPTED, *ENDLESS, *REWARD, *away, *stall) as run:
            assert run.read_until(lambda event: len(event.get("replicas", [])) == 2), (run.events[-3:], run.end())
            reward_gate.shut(tmp_path)
            said = run.read_until(lambda event: "waiting for reward" in event.get("text", ""))
            assert said, (run.events[-3:], run.end())
            run.process.send_signal(signal.SIGINT)
            code, err = run.end()
    assert code == 130, err
    line = _first(run.notices(), "waiting for reward")
    home, *others = (tmp_path / line.rpartition("processes are in ")[2]).read_text().split("######## node ")
    assert "==== reward, pid" in home
    assert "==== rollout-" not in home
    assert len(others) == 2
    for part in ("node", "rollout-"):
        assert all(f"==== {part}" in other for other in others), part


@pytest.mark.long
def test_a_rank_of_fsdp_that_hangs_is_named_by_the_one_that_waited(tmp_path: Path, streamrl_path: Path) -> None:
    prepare(tmp_path)
    ranks = ("--learner.num_workers", "2", "--rollout.replicas", "1", "--deadlines.step_s", "10")
    with live_run(tmp_path, streamrl_path, "hangs", *SCRIPTED, *ENDLESS, *ranks) as run:
        run.until_step(4)
        run.actors("LearnerRank")[-1].send_signal(signal.SIGSTOP)
        code, err = run.end()
    assert code == 4, err
    told = re.search(r"learner-(\d): .* took longer than 10 s.*; the others wait for learner-(\d): no answer", err)
    assert told is not None, err
    assert told[1] != told[2]
    assert "in forward_backward of step" in err or "in wait of step" in err


def _first(texts: list[str], words: str) -> str:
    return next(text for text in texts if words in text)
