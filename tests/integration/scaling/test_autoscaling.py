"""A live run whose learner waits for rows gets a second replica by itself, and says why."""

import json
import signal
import subprocess
from pathlib import Path

import pytest
from support.runs.live_run import LiveRun, live_run

pytestmark = pytest.mark.ray

# A group at a time, each of which waits for its commit: eight of them take longer than a step of the learner.
SLOW = ("--rollout.engine", "scripted", "--rollout.slots", "4", "--queue.commit_interval_ms", "50")
LIMITS = ("--rollout.replicas", "1", "--rollout.autoscaling.max_replicas", "2")
QUICK = ("--rollout.autoscaling.upscale_delay_s", "2", "--eval.every", "100000", "--learner.steps", "100000")


def streamrl_json(streamrl: Path, *words: object) -> dict[str, object]:
    done = subprocess.run([streamrl, *map(str, words), "--json"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def autoscaled(run: LiveRun) -> dict[str, object]:
    assert run.read_until(lambda event: event["kind"] == "autoscaling"), (run.events[-3:], run.end())
    return run.events[-1]


@pytest.mark.long
def test_a_learner_that_waits_has_a_second_replica_and_the_run_says_why(user_folder: Path, streamrl_path: Path) -> None:
    with live_run(user_folder, streamrl_path, "autoscaled", *SLOW, *LIMITS, *QUICK) as run:
        decision = autoscaled(run)
        assert (decision["before"], decision["replicas"]) == (1, 2)
        assert "while every replica had all it could take: generation is the limit" in str(decision["reason"])
        assert run.read_until(lambda event: len(event.get("replicas", [])) == 2)
        status = streamrl_json(streamrl_path, "status", run.folder)["autoscaling"]
        assert isinstance(status, dict)
        assert (status["replicas"], status["max_replicas"], status["fixed"]) == (2, 2, False)
        assert streamrl_json(streamrl_path, "scale", run.folder, "rollout=1")["before"] == 2
        assert run.read_until(lambda event: event["kind"] == "replicas" and len(event["replicas"]) == 1)
        assert streamrl_json(streamrl_path, "scale", run.folder, "rollout=auto")["rollout"] == "auto"
        run.process.send_signal(signal.SIGINT)
        code, err = run.end()
    assert code == 130, err
    told = [json.loads(line) for line in (run.folder / "events.jsonl").read_text().splitlines()]
    assert [event["reason"] for event in told if event["kind"] == "autoscaling"] == [decision["reason"]]
    assert run.notices()[-2:] == [
        "rollout replicas: 2 -> 1, until rollout=auto",
        "rollout replicas: 1 -> 1, by autoscaling",
    ]
