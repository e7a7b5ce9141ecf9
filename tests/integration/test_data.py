"""Whole runs on files as people have them: verl's layout and function, held-out sets by name, and a kill in the
middle."""

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from support.data.chat_model import write_rows
from support.runs.live_run import live_run

from streamrl.config import load
from streamrl.reference import Reference
from streamrl.services.run.folder import RunFolder

pytestmark = [pytest.mark.ray, pytest.mark.long]

STEPS = 8
TEMPLATE = "{{ bos_token }}{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
REWARDS = """
import time


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    small = sum(character in "01234" for character in solution_str) / 6
    return {"score": small, "acc": solution_str == ground_truth, "pred": solution_str, **(extra_info or {})}


def slow_score(data_source, solution_str, ground_truth, extra_info=None):
    time.sleep(0.02)
    return compute_score(data_source, solution_str, ground_truth, extra_info)


async def brevity(completions, prompts, **columns):
    texts = [turns if isinstance(turns, str) else turns[0]["content"] for turns in completions]
    assert all(isinstance(prompt, str) or prompt[0]["role"] == "user" for prompt in prompts)
    return [1 / len(text) if text else None for text in texts]
"""
SYNCHRONOUS = (
    *("--learner.max_staleness", "0"),
    *("--rollout.update_mode", "drain"),
    *("--rollout.deterministic", "true"),
)


def verl_row(left: int, right: int, split: str) -> dict[str, Any]:
    return {
        "data_source": "sums",
        "prompt": [{"role": "user", "content": f"{left}+{right}="}],
        "ability": "math",
        "reward_model": {"ground_truth": str(left + right), "style": "rule"},
        "extra_info": {"index": left, "split": split},
    }


@pytest.fixture(scope="module")
def files(user_folder: Path, streamed: Any) -> Path:
    """In the user's folder: a model with a chat template, verl's files, and functions of the user's."""
    folder = user_folder / "files"
    shutil.copytree(streamed.folder / "model", folder / "model")
    (folder / "model" / "chat_template.jinja").write_text(TEMPLATE)
    (user_folder / "verl_rewards.py").write_text(REWARDS)
    for split, lefts in (("train", range(30)), ("test", range(30, 34))):
        table = pa.Table.from_pylist([verl_row(left, right, split) for left in lefts for right in range(9)])
        pa.parquet.write_table(table, folder / f"{split}.parquet")
    odd = [{"prompt": "5+5=", "answer": "10"}, {"prompt": "1+1=" * 40}, {"prompt": ""}, "{", {"prompt": "6+6="}]
    write_rows(folder / "odd.jsonl", odd)
    return folder


def options(files: Path, *more: str) -> tuple[str, ...]:
    settings = {
        "model.preset": "none",
        "model.path": f"{files}/model",
        "learner.steps": str(STEPS),
        "data.train": f'["{files}/train.parquet", "{files}/odd.jsonl"]',
        "data.eval": f'{{sums = "{files}/test.parquet", odd = "{files}/odd.jsonl"}}',
        "data.too_long": "skip",
        "data.max_prompt_tokens": "50",
        "data.cache": f"{files}/cache",
        "reward.function": "verl_rewards:compute_score",
    }
    return (*(word for key, value in settings.items() for word in (f"--{key}", value)), *more)


def test_a_run_on_verls_files_and_functions_tells_of_each_set_each_reward_and_each_row_left_out(
    train, streamrl, files: Path
) -> None:
    functions = '{"verl_rewards:compute_score" = 1.0, "verl_rewards:brevity" = 0.5}'
    several = ("--reward.function", "exact_match", "--reward.functions", functions)
    sampled = ("--eval.samples", "2", "--eval.temperature", "1.0")
    run = train("verl", *options(files, *several, *sampled, "--data.weights", "[3.0, 1.0]"))
    assert run.code == 0, run.output
    assert "2 of odd to evaluate on" in run.output
    assert "odd.jsonl: row 3: column 'prompt' is '': the prompt is empty" in run.output
    summary = run.summary()
    # The odd file is read twice, to train and to evaluate on.
    assert (summary["rows_too_long"], summary["rows_unusable"]) == (2, 4)
    parts = {"eval/avg@2", "eval/pass@2"} | {
        f"eval/{name}/{what}" for name in ("sums", "odd") for what in ("score", "avg@2", "pass@2")
    }
    assert set(summary["eval_parts"]) == parts
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    told = {key for line in lines for key in line}
    assert {"reward/verl_rewards:compute_score/mean", "reward/verl_rewards:brevity/mean", *parts} <= told
    query = 'SELECT count(*) AS n FROM scores WHERE info LIKE \'%"split": "train"%\''
    found = streamrl("sql", "verl", query, "--json")
    assert found.code == 0, found.output
    assert json.loads(found.output)[0]["n"] > 0


CURRICULUM = (
    *("--data.curriculum.low", "0.2"),
    *("--data.curriculum.high", "0.35"),
)


@pytest.mark.parametrize("curriculum", [(), CURRICULUM])
def test_invariant_4_a_run_on_files_that_was_killed_is_bit_equal_to_the_loop_that_never_was(
    streamrl,
    files: Path,
    streamrl_path: Path,
    user_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    curriculum: tuple[str, ...],
) -> None:
    flags = options(files, *SYNCHRONOUS, "--checkpoint.every", "2", *curriculum)
    name = f"killed-on-files-{len(curriculum)}"
    if curriculum:
        # Few enough that most have a turn in each step.
        rows = [{"prompt": f"{left}+{right}=", "answer": str(left + right)} for left in range(3) for right in range(4)]
        write_rows(files / "few.jsonl", rows)
        flags = (*flags, "--data.train", f"{files}/few.jsonl", "--reward.function", "dense:reward")
    with live_run(user_folder, streamrl_path, name, *flags) as run:
        run.until_step(4)
        launch = RunFolder.open(run.folder).record.launch
        assert launch is not None
        os.kill(launch.owner.pid, signal.SIGKILL)
        run.end()
    again = streamrl("up", "base.toml", "--name", name, *flags)
    assert again.code == 0, again.output
    monkeypatch.syspath_prepend(user_folder)
    records = list(Reference(load(run.folder / "config.toml")).steps())
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    digests = [line["weights/digest"] for line in lines if "weights/digest" in line]
    assert (max(line.get("queue/resting", 0) for line in lines) > 0) == bool(curriculum)
    assert digests == [record.digest for record in records]
    assert len(digests) == STEPS


def test_a_run_whose_reward_was_wrong_is_scored_again_and_goes_on_with_the_right_one(
    streamrl, files: Path, streamrl_path: Path, user_folder: Path
) -> None:
    steps = 60
    # So slow that the run is still up when both commands have come to it: each takes seconds to start.
    slow = ("--reward.function", "verl_rewards:slow_score", "--learner.steps", str(steps))
    flags = (*options(files), *slow, "--checkpoint.every", "2", "--checkpoint.keep", "1")
    with live_run(user_folder, streamrl_path, "wrong", *flags) as run:
        run.until_step(5)
        refused = streamrl("rescore", "wrong", "--reward", "dense:reward")
        assert (refused.code, "run wrong is up" in refused.output) == (2, True), refused.output
        assert streamrl("down", "wrong").code == 0
        run.end()
    (user_folder / "right_rewards.py").write_text("def score(completion, **_):\n    return len(completion) + 100.0\n")
    scored = streamrl("rescore", "wrong", "--reward", "right_rewards:score", "--json")
    assert scored.code == 0, scored.output
    told = json.loads(scored.output)
    assert told["before"] <= 1.0 < 100.0 < told["after"]
    old = streamrl("up", "base.toml", "--name", "wrong", *flags)
    assert (old.code, "differs in reward.function" in old.output) == (2, True), old.output
    again = streamrl("up", "runs/wrong/config.toml")
    assert again.code == 0, again.output
    query = "SELECT step, min(reward) AS least FROM rollouts WHERE step IS NOT NULL GROUP BY step ORDER BY step"
    rows = json.loads(streamrl("sql", "wrong", query, "--json").output)
    assert [row["step"] for row in rows] == list(range(1, steps + 1))
    saved = [row["step"] for row in rows if row["least"] < 100.0]
    # Steps that a checkpoint had keep the scores that they were trained with; the others were trained again.
    assert saved == list(range(1, len(saved) + 1))
    assert 4 <= len(saved) < steps
