"""A run whose reward runs what the model writes: programs of digits and signs, in the sandbox."""

import json
from pathlib import Path

import pytest
from support.data.chat_model import write_rows
from support.runs.finished_run import run

pytestmark = pytest.mark.ray

RUN = """
name = "test"
[model]
preset = "tiny-qwen3"
[data]
train = "rows.jsonl"
[rollout]
group_size = 4
slots = 32
kv_bytes = 8388608
[rollout.sampling]
max_new_tokens = 3
[reward]
function = "code"
timeout_s = 120
batch_size = 32
workers = 2
[sandbox]
time_s = 5
[learner]
steps = 4
groups_per_step = 8
[eval]
every = 1000
"""


@pytest.mark.long
def test_programs_are_scored_while_the_run_trains(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(RUN)
    # A program passes that is one, as most strings of digits and signs are not.
    write_rows(tmp_path / "rows.jsonl", [{"prompt": "1+1=", "tests": {"inputs": [""], "outputs": [""]}}] * 40)
    done = run(tmp_path, "up", "run.toml")
    assert done.code == 0, done.output
    assert len(done.metrics()) == 4
    rows = json.loads(run(tmp_path, "sql", "test", "select reward, info from scores", "--json").output)
    assert len(rows) >= 4 * 8 * 4
    assert {row["reward"] for row in rows} == {0.0, 1.0}
    assert all(("exit code 1" in row["info"]) == (row["reward"] == 0.0) for row in rows)
