"""What goes wrong in a run, for real: parts that die, hang or answer nonsense. Nothing is lost, and it is said why."""

import json
import signal
from pathlib import Path

import psutil
import pytest
from support.queue.trained_groups import trained_groups
from support.runs.live_run import live_run

from streamrl.scheduling.off_policy_guard import PATIENCE

pytestmark = pytest.mark.ray

# The learner trains, whatever samples: no torch engine to start, and faults on demand.
SCRIPTED = ("--rollout.engine", "scripted", "--eval.every", "1000")


def test_invariant_8_parts_killed_and_rollouts_that_fail_lose_nothing_and_are_no_numbers(
    user_folder: Path, streamrl_path: Path
) -> None:
    faults = ("--rollout.scripted.error_rate", "0.25", "--rollout.scripted.nan_rate", "0.15")
    with live_run(user_folder, streamrl_path, "killed", *SCRIPTED, *faults, "--learner.steps", "60") as run:
        run.until_step(5)
        run.actors("RolloutReplica")[0].send_signal(signal.SIGKILL)
        run.until_step(20)
        run.actors("RewardActor")[0].send_signal(signal.SIGKILL)
        code, err = run.end()
    assert code == 0, err
    notices = run.notices()
    assert any("rollout-" in text and "restart 1 of 3" in text for text in notices)
    assert any("reward" in text and "restart 1 of 3" in text for text in notices)
    groups = trained_groups(run.folder)
    assert len(groups) == len(set(groups)) == 60 * 8
    steps = run.steps()
    assert sum(step["reward/failed"] for step in steps) > 0
    assert all(0.0 <= step["reward/mean"] <= 1.0 for step in steps)
    summary = json.loads((run.folder / "summary.json").read_text())
    assert set(summary["discards_by_reason"]) == {"reward_failed"}


@pytest.mark.long
def test_a_reward_that_always_raises_stops_the_run_with_its_reason(user_folder: Path, streamrl_path: Path) -> None:
    (user_folder / "broken.py").write_text("def reward(completion, **_):\n    raise KeyError('solution')\n")
    with live_run(user_folder, streamrl_path, "raises", *SCRIPTED, "--reward.function", "broken:reward") as run:
        code, err = run.end()
    assert code == 4
    assert "KeyError" in err
    assert "reward.max_failed" in err
    assert "Traceback" not in err
    assert json.loads((run.folder / "failure.json").read_text())["component"] == "reward"


@pytest.mark.long
def test_a_task_of_which_every_group_is_filtered_ends_the_run_and_says_why(
    user_folder: Path, streamrl_path: Path
) -> None:
    (user_folder / "flat.py").write_text("def reward(completion, **_):\n    return 1.0\n")
    rule = ("--learner.filter.zero_variance", "true", "--learner.filter.limit", "12")
    with live_run(user_folder, streamrl_path, "flat", *SCRIPTED, "--reward.function", "flat:reward", *rule) as run:
        code, err = run.end()
    assert code == 4
    assert "all filtered, the latest as zero_variance, and learner.filter.limit is 12" in err
    assert "Traceback" not in err
    assert not run.steps()


@pytest.mark.long
@pytest.mark.parametrize("victim", ["up", "watcher", "owner"])
def test_after_kill_9_of_what_holds_a_run_nothing_of_it_is_alive_10_s_later(
    victim: str, user_folder: Path, streamrl_path: Path
) -> None:
    parts = ("--gateway.enabled", "true", "--reward.workers", "2", "--checkpoint.every", "5")
    with live_run(
        user_folder, streamrl_path, f"kill-9-{victim}", *SCRIPTED, *parts, "--learner.steps", "100000"
    ) as run:
        run.until_step(6)
        assert run.events_of("gateway") or run.read_until(lambda event: event["kind"] == "gateway")
        watcher = run.watcher()
        alive = [watcher, *watcher.children(recursive=True)]
        names = " ".join("".join(one.cmdline()[:1]) for one in alive)
        assert all(part in names for part in ("Controller", "RolloutReplica", "GatewayActor", "raylet")), names
        {"up": psutil.Process(run.process.pid), "watcher": watcher, "owner": run.owner()}[victim].kill()
        assert psutil.wait_procs(alive, timeout=10)[1] == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("warns", "pauses", "bound", "proximal", "said"),
    [
        ("least_effective_share", "pause_effective_share", "1.0", "recompute", "was under"),
        # All weights are 1 here, so only the distance itself says that anything is wrong.
        ("most_mismatch_kl", "pause_mismatch_kl", "0.001", "rollout", "was over"),
    ],
    ids=["weights", "distance"],
)
def test_a_run_whose_rows_are_too_far_from_its_policy_pauses_with_a_checkpoint_and_goes_on_from_it(
    warns: str, pauses: str, bound: str, proximal: str, said: str, user_folder: Path, streamrl_path: Path
) -> None:
    # What a script samples has log-probs that no model gave it: the weights of its tokens are never all equal.
    guard = (f"--learner.algorithm.{warns}", bound, f"--learner.algorithm.{pauses}", bound)
    options = (*SCRIPTED, *guard, "--learner.algorithm.proximal", proximal, "--checkpoint.every", "100")
    for first in (0, PATIENCE):
        with live_run(user_folder, streamrl_path, f"far-{proximal}", *options) as run:
            code, err = run.end()
        assert code == 4
        assert f"learner-0: paused at step {first + PATIENCE}: " in err
        assert f"{said} learner.algorithm.{pauses} = {float(bound):g}, now " in err
        assert "Traceback" not in err
        assert [step["step"] for step in run.steps()] == list(range(first + 1, first + PATIENCE + 1))
    groups = trained_groups(run.folder)
    assert len(groups) == len(set(groups)) == 2 * PATIENCE * 8


def test_a_reward_module_that_is_not_there_is_a_configuration_error(user_folder: Path, streamrl_path: Path) -> None:
    with live_run(user_folder, streamrl_path, "missing", *SCRIPTED, "--reward.function", "nowhere:reward") as run:
        code, err = run.end()
    assert code == 2
    assert "nowhere" in err
    assert "Traceback" not in err


STUCK_SCORES = '''
def reward(completion, **_):
    """Hangs over one completion in sixteen, whatever it is."""
    while sum(map(ord, completion)) % 16 == 3:
        pass
    return sum(character in "01234" for character in completion) / 6
'''


@pytest.mark.long
def test_rollouts_and_scores_that_hang_for_ever_do_not_stop_a_run(user_folder: Path, streamrl_path: Path) -> None:
    (user_folder / "stuck.py").write_text(STUCK_SCORES)
    # The deadline ends the replica, four times over the same prompt, which is then given up. Two such prompts have both
    # replicas for themselves at the same time: what waits for a replica meanwhile is not overdue.
    stuck = (
        "--rollout.scripted.hang_rate",
        "0.004",
        "--rollout.scripted.step_s",
        "0.005",
        "--deadlines.rollout_s",
        "8",
    )
    scores = ("--reward.function", "stuck:reward", "--reward.timeout_s", "0.5", "--reward.workers", "2")
    with live_run(user_folder, streamrl_path, "hangs", *SCRIPTED, *stuck, *scores, "--learner.steps", "12") as run:
        code, err = run.end()
    assert code == 0, err
    groups = trained_groups(run.folder)
    assert len(groups) == len(set(groups)) == 12 * 8
    summary = json.loads((run.folder / "summary.json").read_text())
    notices = run.notices()
    fenced = [text for text in notices if "deadlines.rollout_s is 8" in text]
    assert summary["prompts_quarantined"] == sum("is quarantined" in text for text in notices) > 0
    assert len(fenced) > 2 * summary["prompts_quarantined"]
    assert sum(step["reward/failed"] for step in run.steps()) > 0
    assert summary["discards_by_reason"]["replica_died"] == summary["prompts_quarantined"]
