"""Episodes of very different length, some of which fail on their way: none is lost, none blocks, none is too old."""

import json
import math
import random
from collections import Counter

import pytest
from support.data.chat_model import write_rows
from support.engines.calling_model import prepare_calling_model
from support.queue.completion_rows import rows_of
from support.runs.finished_run import Finished, run

pytestmark = [pytest.mark.ray, pytest.mark.long]

STEPS, GROUPS, GROUP_SIZE, STALENESS, MOST_TURNS = 24, 8, 4, 2, 40
RUN = f"""
name = "test"
[model]
path = "model"
[data]
train = "rows.jsonl"
[environment]
name = "my_walks:Walk"
max_turns = {MOST_TURNS}
max_tokens = 512
retries = 100
[reward]
function = "environment"
[rollout]
engine = "scripted"
group_size = {GROUP_SIZE}
slots = 16
[rollout.sampling]
max_new_tokens = 8
[rollout.scripted]
latency_steps = 1
[learner]
steps = {STEPS}
groups_per_step = {GROUPS}
max_staleness = {STALENESS}
[eval]
every = 1000
"""
WALK = '''
"""A walk of as many turns as the row says. Each step may fail, so long walks fail more often."""

import os

from streamrl.environments import Done


class Walk:
    def reset(self, row):
        self.left = int(row["answer"])
        return "hi"

    def step(self, message):
        self.left -= 1
        if os.urandom(1)[0] < 8:
            raise RuntimeError("stumbled")
        return Done(1.0) if self.left == 0 else "hi"
'''


def turns_of(place: int) -> int:
    """Lognormal with a median of 2: every sixth has more than 5, every fortieth more than 14."""
    return min(MOST_TURNS, max(1, round(math.exp(random.Random(place).gauss(math.log(2), 1.0)))))


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("walks")
    prepare_calling_model(folder / "model")
    settings = json.loads((folder / "model/config.json").read_text())
    (folder / "model/config.json").write_text(json.dumps({**settings, "max_position_embeddings": 512}))
    (folder / "run.toml").write_text(RUN)
    (folder / "my_walks.py").write_text(WALK)
    rows = [{"prompt": "hi", "answer": str(turns_of(place))} for place in range(STEPS * GROUPS)]
    write_rows(folder / "rows.jsonl", rows)
    done = run(folder, "up", "run.toml")
    assert done.code == 0, done.output
    return done


def test_what_is_trained_has_the_lengths_of_what_was_asked(walked: Finished) -> None:
    """One of all trained episodes, and of all rows: by the row, which is stronger than by the histogram."""
    rows = list(rows_of(walked.folder))
    assert len(rows) == STEPS * GROUPS * GROUP_SIZE
    assert max(row["turns"] for row in rows) > 10
    asked = Counter(turns_of(place) for place in range(STEPS * GROUPS) for _ in range(GROUP_SIZE))
    assert Counter(row["turns"] for row in rows) == asked
    assert {row["finish_reason"] for row in rows} == {"stop"}


def test_failures_on_the_way_were_many_and_are_told(walked: Finished) -> None:
    faults = sum(line.get("environment/faults", 0) for line in walked.metrics())
    assert faults > 20
    assert sum(line.get("environment/failed", 0) for line in walked.metrics()) == 0


def test_no_token_of_any_turn_is_older_than_the_bound(walked: Finished) -> None:
    assert len(walked.metrics()) == STEPS
    assert max(line["staleness/max"] for line in walked.metrics()) <= STALENESS
    oldest = [min(span["step"] for span in row["version_spans"]) for row in rows_of(walked.folder)]
    several = [row for row in rows_of(walked.folder) if len({span["step"] for span in row["version_spans"]}) > 1]
    assert several, "no episode went on over a new version"
    assert max(oldest) > 0
