"""Data and rewards: what preparing rows and reading prompts take, and how many answers the pool scores a second.

Rows are short JSONL; the memory is that of a process of its own, at its peak, with few rows and with ten times as many.
Scores are those of two children of the pool, a batch of 512 at a time; a figure is the median of the rounds.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from report import Report

from streamrl.rewards.base import RewardItem
from streamrl.rewards.pool import RewardPool

READ = """
import json, resource, sys, time
from pathlib import Path
from streamrl.services.launch.tokenizer_folder import tokenizer_folder
from streamrl.config.schema.data import DataConfig
from streamrl.config.schema.run import ModelConfig
from streamrl.tasks.data.cache import open_data
from streamrl.tasks.order import order_of

folder, look = Path(sys.argv[1]), 20_000
begun = time.monotonic()
with tokenizer_folder(ModelConfig(preset="tiny-qwen3")) as model:
    task = open_data(DataConfig(train=str(folder / "rows.jsonl"), cache=str(folder / "cache")), model, 64)
prepared = time.monotonic()
order = order_of(task, 0)
for place in range(look):
    task.train(order.at(place)[1])
ended = time.monotonic()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"peak": peak, "rows_s": task.num_train / (prepared - begun), "prompts_s": look / (ended - prepared)}))
"""
REWARDS = {
    "gsm8k": ("so we have {0}\n#### {0}", "{0}"),
    "multiple_choice": ("I think that the answer is B.", "B"),
    "math, numbers": ("so \\boxed{{{0}}}", "{0}"),
    "math, expressions": ("so \\boxed{{x^2+{0}}}", "{0}+x^2"),
    "math, expressions, each said by 8": ("so \\boxed{{x^2+{0}}}", "{0}+x^2"),
}
GROUP = 8
"""Completions of a prompt that say the same: most of a group's do."""
CHILDREN, LEAST_S = 2, 2_000


def read(rows: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with open(folder / "rows.jsonl", "w") as file:
            for number in range(rows):
                left, right = number % 100, number // 100 % 100
                file.write(json.dumps({"prompt": f"{left}+{right}=", "answer": left + right, "id": number}) + "\n")
        done = subprocess.run([sys.executable, "-c", READ, name], check=True, capture_output=True, text=True)
        found: dict[str, float] = json.loads(done.stdout)
        return found


async def scores_a_second(function: str, said: str, answer: str, count: int, group: int) -> float:
    """group: items that say the same."""
    numbers = [number // group for number in range(count)]
    items = [RewardItem(said.format(number), "?", json.dumps({"answer": answer.format(number)})) for number in numbers]
    async with RewardPool(function, workers=CHILDREN, timeout_s=120.0) as pool:
        await pool.score(items[: 2 * CHILDREN])
        begun = time.monotonic()
        scores = await pool.score(items)
        seconds = time.monotonic() - begun
    assert all(score.reward == 1.0 for score in scores), "these answers are right"
    return count / seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rows", type=int, default=200_000, help="of the smaller file; the larger has ten times as many"
    )
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    report = Report("data")
    few, many = read(arguments.rows), read(10 * arguments.rows)
    report.add("rows prepared, one core", many["rows_s"], "1/s")
    report.add("prompts read in the run's order, one core", many["prompts_s"], "1/s")
    report.add(f"memory at the peak, {10 * arguments.rows:,} rows", many["peak"] / 1e6, "MB", at_most=300)
    report.add("memory with ten times the rows", many["peak"] / few["peak"], "x", at_most=1.2)
    for name, (said, answer) in REWARDS.items():
        group = GROUP if "each said" in name else 1
        count = 1_000 * group if "expressions" in name else 20_000
        rounds = [
            asyncio.run(scores_a_second(name.partition(",")[0], said, answer, count, group))
            for _ in range(arguments.rounds)
        ]
        wanted = None if name.endswith("expressions") else LEAST_S
        report.add(f"{name}, {CHILDREN} children", statistics.median(rounds), "scores/s", at_least=wanted)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
