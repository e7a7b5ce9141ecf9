"""`streamrl why` on real runs that have something amiss: each is named by what the run itself wrote down.

Two runs with other things amiss each, so each of them also shows that the other's findings do not come by themselves.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.runs.finished_run import run

pytestmark = [pytest.mark.ray, pytest.mark.long]

COMMON = """
[model]
preset = "tiny-qwen3"
[rollout]
engine = "scripted"
[eval]
every = 1000
max_items = 4
[observe]
trace = false
"""

# A judge that takes its time, gives all answers the same, and is asked of answers that are five times too long.
SLOW_JUDGE = """
[rollout]
group_size = 4
[rollout.scripted]
latency_steps = 30
[rollout.sampling]
max_new_tokens = 6
[reward]
function = "judges:slow_and_equal"
[learner]
steps = 12
groups_per_step = 8
"""

# Four passes over long batches, half of them by a replica whose log-probs are not those of its samples.
SLOW_LEARNER = """
[rollout]
replicas = 2
group_size = 16
slots = 32
[rollout.scripted]
latency_steps = 24
logprob_bias = -5.0
biased_replica = 1
[rollout.sampling]
max_new_tokens = 24
[reward]
function = "judges:small_digits"
[learner]
steps = 14
groups_per_step = 8
ppo_epochs = 4
[learner.optimizer]
lr = 1e-6
[learner.algorithm]
proximal = "rollout"
"""

JUDGES = '''
"""Rewards of the tests."""

import time


def slow_and_equal(completion, **_):
    time.sleep(0.02)
    return 0.5


def small_digits(completion, **_):
    return sum(character in "01234" for character in completion) / 24
'''


class Explained:
    """A finished run, and what `streamrl why` says of it."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self.findings = {finding["kind"]: finding for finding in self.asked("why")}

    def figures(self, kind: str) -> dict[str, float]:
        return self.findings[kind]["figures"]

    def asked(self, command: str, *words: str) -> list[dict[str, Any]]:
        done = run(self._folder, command, self._name, *words, "--json")
        assert done.code == 0, done.output
        return json.loads(done.output)


@pytest.fixture(scope="module")
def explained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Explained]:
    """`explained(name, settings)`: a run to its end."""
    folder = tmp_path_factory.mktemp("why")
    (folder / "judges.py").write_text(JUDGES)
    (folder / "common.toml").write_text(COMMON)

    def train(name: str, settings: str) -> Explained:
        (folder / f"{name}.toml").write_text(settings)
        done = run(folder, "up", "common.toml", "@", f"{name}.toml", "--name", name)
        assert done.code == 0, done.output
        return Explained(folder, name)

    return train


@pytest.fixture(scope="module")
def judged(explained: Callable[[str, str], Explained]) -> Explained:
    return explained("judged", SLOW_JUDGE)


@pytest.fixture(scope="module")
def learned(explained: Callable[[str, str], Explained]) -> Explained:
    return explained("learned", SLOW_LEARNER)


def test_a_slow_reward_bounds_the_run(judged: Explained) -> None:
    figures = judged.figures("bound by reward")
    assert next(iter(judged.findings)) == "bound by reward"
    # The judge alone takes 32 times 0.02 s for a step, but for what it judged beside the first.
    assert figures["time/step"] > 0.4
    assert figures["share"] > 0.5
    assert figures["queue/unscored_s"] > 0.5 * figures["time/wait"]


def test_a_constant_reward_is_named_with_its_value(judged: Explained) -> None:
    assert judged.figures("constant reward") == {"reward/mean": 0.5}
    assert judged.figures("zero variance") == {"reward/zero_variance_share": 1.0}
    assert judged.figures("no gradient") == {"grad/norm": 0.0}


def test_answers_that_are_all_cut_are_named_with_the_limit(judged: Explained) -> None:
    assert judged.figures("truncated") == {"reward/truncated_share": 1.0}
    assert "rollout.sampling.max_new_tokens = 6" in judged.findings["truncated"]["text"]


def test_a_slow_learner_bounds_the_run(learned: Explained) -> None:
    figures = learned.figures("bound by learner")
    assert next(iter(learned.findings)) == "bound by learner"
    assert figures["share"] < 0.1
    assert figures["time/forward_backward"] > 0.5 * figures["time/step"]


def test_one_biased_replica_is_named_and_it_is_the_one_whose_rows_say_other_log_probs(learned: Explained) -> None:
    figures = learned.figures("drifting replica")
    assert figures.keys() == {"mismatch/rollout-1/kl", "peers_median"}
    assert figures["mismatch/rollout-1/kl"] > 3 * figures["peers_median"] > 0
    query = "select replica, avg(list_avg(rollout_logprobs[-24:])) as told from completions group by 1 order by 1"
    told = learned.asked("sql", query)
    assert [row["replica"] for row in told] == ["rollout-0", "rollout-1"]
    assert told[1]["told"] - told[0]["told"] == pytest.approx(-5.0, abs=0.1)


def test_nothing_is_found_in_a_run_that_has_it_not(judged: Explained, learned: Explained) -> None:
    amiss = {"bound by reward", "constant reward", "zero variance", "no gradient", "truncated"}
    assert judged.findings.keys() == amiss
    assert not learned.findings.keys() & amiss
