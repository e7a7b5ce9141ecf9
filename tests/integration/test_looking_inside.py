"""`streamrl sql` and `streamrl queue` on real runs, live, killed and finished; each query of docs/guides/sql.md."""

import json
import re
import shutil
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from support.repository import ROOT
from support.runs.live_run import STREAMRL, live_run

from streamrl.buffers.segments.reader import SegmentReader
from streamrl.observability.trackers.names import TABLES
from streamrl.services.inspect.queue import queue_facts
from streamrl.services.inspect.sql import query_run
from streamrl.services.inspect.verify import verify_run
from streamrl.services.run.folder import RunFolder

pytestmark = pytest.mark.ray

DOCS = ROOT / "docs" / "guides" / "sql.md"
QUERIES = re.findall(r"\*\*(.*?)\*\*.*?```sql\n(.*?)```", DOCS.read_text(), re.DOTALL)
LONG = ("--rollout.sampling.max_new_tokens", "48", "--rollout.slots", "16", "--learner.steps", "30")
"""Rollouts that are long enough for the weights to change meanwhile."""

Command = Callable[..., Any]
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def looked(train: Callable, streamrl: Command) -> Callable[[str], Rows]:
    """A run, and `looked(query)`: the rows that `streamrl sql --json` gives of it."""
    finished = train("looked", *LONG)
    assert finished.code == 0, finished.output

    def ask(query: str) -> Rows:
        done = streamrl("sql", "looked", query, "--json")
        assert done.code == 0, done.output
        return json.loads(done.output)

    return ask


@pytest.fixture(scope="module")
def rollouts(looked: Callable[[str], Rows]) -> Rows:
    return looked("select * from rollouts")


def query(words: str) -> str:
    (found,) = [text for title, text in QUERIES if words in title]
    return found


def test_a_run_has_every_key_that_the_names_of_other_systems_stand_for(looked: Callable[[str], Rows]) -> None:
    keys = {key for row in looked("select * from steps") for key, value in row.items() if value is not None}
    sources = {equal.key for table in TABLES.values() for equal in table.values()}
    sources |= {equal.over for table in TABLES.values() for equal in table.values() if equal.over is not None}
    # Of runs with a reference policy or a critic.
    assert {key for key in sources - keys if not key.startswith("critic/")} == {"loss/kl"}


def test_the_page_has_six_queries() -> None:
    assert len(QUERIES) == 6


def test_every_accepted_row_is_there_and_in_its_step(looked: Callable, rollouts: Rows) -> None:
    assert len(rollouts) == 30 * 8 * 4
    assert {row["state"] for row in rollouts} == {"trained"}
    means = {row["step"]: row["reward/mean"] for row in looked("select * from steps")}
    stale = {row["step"]: row["staleness/max"] for row in looked("select * from steps")}
    of_step = defaultdict(list)
    for row in rollouts:
        of_step[row["step"]].append(row)
    assert of_step.keys() == means.keys()
    for step, rows in of_step.items():
        assert fmean(row["reward"] for row in rows) == pytest.approx(means[step], abs=1e-12)
        assert max(row["staleness"] for row in rows) == stale[step]
        # Token means: what each token weighs is one over the tokens of the batch.
        tokens = sum(row["sampled_tokens"] for row in rows)
        assert all(row["loss_weight"] == pytest.approx(row["advantage"] / tokens, rel=1e-6) for row in rows)


def test_query_lengths_and_their_share_of_the_loss(looked: Callable, rollouts: Rows) -> None:
    told = looked(query("long answers"))
    assert [row["sampled_tokens"] for row in told] == sorted({row["sampled_tokens"] for row in rollouts})
    assert sum(row["rollouts"] for row in told) == len(rollouts)
    total = sum(abs(row["loss_weight"]) * row["sampled_tokens"] for row in rollouts)
    for one in told:
        rows = [row for row in rollouts if row["sampled_tokens"] == one["sampled_tokens"]]
        share = sum(abs(row["loss_weight"]) * row["sampled_tokens"] for row in rows) / total
        assert one["share_of_loss"] == pytest.approx(share)
        assert one["reward"] == pytest.approx(fmean(row["reward"] for row in rows))
    assert sum(row["share_of_tokens"] for row in told) == pytest.approx(1)


def test_query_prompts_that_never_succeed(looked: Callable, rollouts: Rows) -> None:
    best: dict[str, float] = defaultdict(float)
    tries: dict[str, int] = defaultdict(int)
    for row in rollouts:
        best[row["prompt_id"]] = max(best[row["prompt_id"]], row["reward"])
        tries[row["prompt_id"]] += 1
    told = looked(query("never succeed"))
    assert {row["prompt_id"]: row["tries"] for row in told} == {name: tries[name] for name in best if best[name] <= 0}


def test_query_reward_by_the_age_of_the_version(looked: Callable, rollouts: Rows) -> None:
    told = looked(query("age of the version"))
    assert sum(row["rollouts"] for row in told) == len(rollouts)
    for one in told:
        rewards = [row["reward"] for row in rollouts if row["staleness"] == one["staleness"]]
        assert one["reward"] == pytest.approx(fmean(rewards))
    assert max(row["staleness"] for row in told) <= 2


def test_query_rollouts_of_two_versions(looked: Callable, rollouts: Rows) -> None:
    told = looked(query("two versions"))
    expected = {row["rollout_id"]: row for row in rollouts if len(row["version_spans"]) > 1}
    # How many there are is a matter of the machine's speed; `test_sql_query` has some for certain.
    assert {row["rollout_id"] for row in told} == expected.keys()
    for one in told:
        row = expected[one["rollout_id"]]
        spans = row["version_spans"]
        assert one["versions"] == [f"{span['incarnation']}.{span['step']}" for span in spans]
        starts = [*(span["start"] for span in spans), len(row["token_ids"])]
        assert one["tokens"] == [end - start for start, end in pairwise(starts)]
        assert sum(one["tokens"]) == row["sampled_tokens"]


def test_query_slowest_rollouts(looked: Callable, rollouts: Rows) -> None:
    told = looked(query("slowest"))
    seconds = sorted(((row["finished_ns"] - row["started_ns"]) / 1e9 for row in rollouts), reverse=True)
    assert [row["seconds"] for row in told] == pytest.approx(seconds[:10])


def test_query_story_of_a_group(looked: Callable, rollouts: Rows) -> None:
    told = looked(query("whole story"))
    kinds = [row["kind"] for row in told]
    assert sorted(kinds) == sorted(["issued", *["accepted"] * 4, *["scored"] * 4, "trained"])
    assert (kinds[0], kinds[-1]) == ("issued", "trained")
    best = min(rollouts, key=lambda row: (-row["reward"], row["group_number"]))
    # The ledger counts by the step that was held, `rollouts` by the step that was made.
    assert told[-1]["step"] == best["step"] - 1


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_run_is_looked_into_while_it_is_up_and_after_it_was_killed(user_folder: Path) -> None:
    count = "select count(*), count(*) filter (state = 'trained'), max(step) from rollouts"
    with live_run(user_folder, STREAMRL, "watched", "--learner.steps", "100000") as run:
        run.until_step(8)
        folder = RunFolder.open(run.folder)
        facts = queue_facts(folder)
        queue = facts["queue"]
        assert (facts["source"], facts["state"]) == ("run", "running")
        assert facts["durability"].startswith("disk: ")
        states = ("running", "ready", "leased", "trained")
        dropped = sum(queue["groups_dropped"].values())
        assert queue["groups_issued"] == sum(queue[f"groups_{state}"] for state in states) + dropped
        assert queue["bytes_used"] > 0
        assert facts["oldest"] is None or 0 <= facts["oldest"]["age_s"] < 100
        looks = [query_run(folder, count, pytest.fail).rows[0] for _ in range(4)]
        assert looks == sorted(looks)
        assert all(trained == 32 * step <= rows and step >= 8 for rows, trained, step in looks)
        for _ in range(4):
            assert verify_run(folder).damage == []
        run.owner().kill()
        run.end()
    checked = verify_run(folder)
    assert checked.damage == []
    # Nobody closed the segments, and everything that the ledger names is in them.
    assert checked.queue.acknowledged_frames > 0
    assert any(not SegmentReader(run.folder).sealed(path) for path in segments(run.folder))
    facts = queue_facts(folder)
    assert (facts["source"], facts["queue"]["groups_leased"]) == ("ledger", 0)
    assert query_run(folder, count, pytest.fail).rows[0][2] == facts["queue"]["next_step"] >= 8


def segments(folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in folder.glob("queue/*/*.arrow")]


def test_damage_is_found_and_named_at_the_command_line(
    looked: Callable, user_folder: Path, streamrl: Command, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(user_folder / "runs" / "looked", copy)
    (path, *_) = sorted((copy / "queue" / "completions").glob("*.arrow"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    checked = streamrl("queue", str(copy), "--verify")
    assert checked.code == 4
    assert re.search(rf"^DAMAGE +queue/completions/{path.name}: offset \d+ \(acknowledged\)", checked.output, re.M)
    refused = streamrl("sql", str(copy), "select count(*) from rollouts")
    assert (refused.code, path.name in refused.output, "Traceback" in refused.output) == (4, True, False)
    assert streamrl("sql", str(copy), "select count(*) from steps").code == 0
