"""A run with the least budgets that `check` allows, at the real command line: it waits for nothing for ever, keeps to
them, and says what it let go.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.runs.live_run import prepare

pytestmark = pytest.mark.ray

Terminal = Callable[..., Any]
SEGMENT_BYTES = 16_384
# 4 steps of 32 rollouts at full length, and not a byte more.
GIVEN = (
    *("--rollout.engine", "scripted", "--rollout.replicas", "1", "--eval.every", "1000", "--learner.steps", "24"),
    *("--checkpoint.every", "1000", "--queue.retain", "covered", "--reward.batch_size", "16"),
    *("--queue.segment_bytes", str(SEGMENT_BYTES), "--queue.byte_budget", "BUDGET"),
)


def least(terminal: Terminal, given: tuple[str, ...]) -> str:
    """The least `queue.byte_budget` that a check asks for."""
    refused = terminal("check", "base.toml", *(word.replace("BUDGET", "1") for word in given))
    assert refused.code == 2, refused.output
    return str(refused.output.split("set at least ")[1].split()[0])


@pytest.mark.long
def test_invariant_9_a_run_with_the_least_budgets_comes_to_its_end_within_them(
    terminal: Terminal, tmp_path: Path
) -> None:
    prepare(tmp_path)
    budget = least(terminal, GIVEN)
    done = terminal("up", "base.toml", "--json", *(word.replace("BUDGET", budget) for word in GIVEN))
    assert done.code == 0, done.output
    events = [json.loads(line) for line in (done.folder / "events.jsonl").read_text().splitlines()]
    saved = [event["step"] for event in events if event["kind"] == "checkpoint"]
    assert len(saved) > 1, "no checkpoint was taken before its time"
    assert saved[-1] == 24
    assert all(line["queue/bytes"] <= int(budget) for line in done.metrics())
    rows = done.folder / "queue" / "completions"
    kept = sorted(int(path.stem.split("-")[-1]) for path in rows.glob("*.arrow"))
    assert kept[0] > 0, "nothing was let go"
    assert kept == list(range(kept[0], kept[-1] + 1))
    assert len(kept) * SEGMENT_BYTES <= 2 * int(budget)

    verdict = terminal("queue", "test", "--verify")
    assert verdict.code == 0, verdict.output
    refused = terminal("replay", "test")
    assert refused.code == 2, refused.output
    assert "log files are gone, the first of them queue/" in refused.output
    assert 'queue.retain = "all"' in refused.output
