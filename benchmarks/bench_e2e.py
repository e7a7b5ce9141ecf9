"""Rollouts trained per second against TRL's GRPOTrainer: same warm model, task, batch, rate and steps, in turns.

    make bench-e2e

Wanted: at least as many as TRL (1.5x hoped for), at no lower held-out score for equal samples. Both sides have both
cores; starting up, loading and warming up are in neither figure. Writes benchmarks/out/e2e.json.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import torch
from report import Report

from streamrl.config import load
from streamrl.config.load import load_args
from streamrl.engines.torch.engine import TorchEngine
from streamrl.evaluation import Evaluator, held_out_prompts, mean_score
from streamrl.models.load import load_model
from streamrl.models.tokenizer import load_tokenizer
from streamrl.rewards.scorer import Scorer, resolve_reward
from streamrl.tasks.order import PromptOrder
from streamrl.tasks.resolve import resolve_task
from streamrl.types import Version

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "configs/quickstart.toml"
TRL_PYTHON = ROOT / ".venvs/trl/bin/python"
STREAMRL = Path(sys.executable).with_name("streamrl")
RATE = 3e-4
SETTINGS = ("--rollout.group_size", "8", "--learner.groups_per_step", "64", "--rollout.sampling.temperature", "1.0")
"""Of both sides; `peers/trl_grpo.py` has the same."""


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--steps", type=int, default=150)
    arguments.add_argument("--rounds", type=int, default=3)
    options = arguments.parse_args()
    out = ROOT / "benchmarks/out/e2e"
    out.mkdir(parents=True, exist_ok=True)
    warm = warm_model(out)
    prompts = write_prompts(out / "prompts.jsonl", options.steps)
    rounds = []
    for number in range(options.rounds):
        ours = run_streamrl(out, warm, options.steps, number)
        theirs = run_trl(out, warm, prompts, options.steps)
        rounds.append((ours, theirs))
        print(
            f"round {number}: streamrl {ours['rollouts_per_s']:.0f}/s, TRL {theirs['rollouts_per_s']:.0f}/s", flush=True
        )
    return report_on(rounds, held_out_score(warm), options.steps)


def report_on(rounds: list[tuple[dict, dict]], before: float, steps: int) -> int:
    report = Report("e2e")
    ours = statistics.median(one["rollouts_per_s"] for one, _ in rounds)
    theirs = statistics.median(one["rollouts_per_s"] for _, one in rounds)
    ratio = statistics.median(a["rollouts_per_s"] / b["rollouts_per_s"] for a, b in rounds)
    our_score = statistics.median(one["score"] for one, _ in rounds)
    their_score = statistics.median(one["score"] for _, one in rounds)
    report.add("rollouts trained per second, streamrl", ours, "1/s")
    report.add(f"rollouts trained per second, TRL {rounds[0][1]['trl']}", theirs, "1/s")
    report.add("ratio, median of rounds", ratio, "x", at_least=1.0)
    report.add("the same, hoped for 1.5", ratio, "x")
    report.add("held-out score before", before, "")
    report.add(f"held-out score after {steps} steps, TRL", their_score, "")
    # A thousand items: the score of one model is known to about 0.015.
    report.add(f"held-out score after {steps} steps, streamrl", our_score, "", at_least=their_score - 0.015)
    report.add("staleness, mean", statistics.median(one["staleness_mean"] for one, _ in rounds), "steps")
    report.add("learner waits, share", statistics.median(one["learner_wait_share"] for one, _ in rounds), "")
    return report.finish()


def warm_model(out: Path) -> Path:
    """The quickstart's model after a warm-up of its own, made once: the figures do not move with the quickstart's."""
    folder = out / "runs/warm"
    if not (folder / "summary.json").exists():
        warmup = ("--warmup.max_steps", "400", "--warmup.batch_size", "256", "--warmup.target_score", "0.33")
        up(out, "warm", *warmup, "--learner.steps", "1", "--eval.max_items", "16")
    return folder / "start"


def write_prompts(path: Path, steps: int) -> Path:
    """The prompts of the run in its data order, as TRL's data set."""
    config = load_args(CONFIG, SETTINGS)
    task = resolve_task(config.task.name, config.task.held_out)
    order = PromptOrder(task.num_train, config.seed)
    prompts = [task.train(order.at(n)[1]) for n in range(steps * config.learner.groups_per_step)]
    rows = [{"prompt": prompt.text, **json.loads(prompt.payload)} for prompt in prompts]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run_streamrl(out: Path, warm: Path, steps: int, number: int) -> dict:
    name = f"round{number}"
    model = ("--model.preset", "none", "--model.path", str(warm), "--warmup.max_steps", "0")
    rate = ("--learner.optimizer.lr", str(RATE), "--learner.optimizer.decay", "constant")
    up(out, name, "--fresh", "--learner.steps", str(steps), "--eval.every", str(steps), *model, *rate)
    newest = max(out.glob(f"runs/{name}*/summary.json"), key=os.path.getmtime)
    summary = json.loads(newest.read_text())
    return {**summary, "score": held_out_score(Path(summary["export"]))}


def up(out: Path, name: str, *overrides: str) -> None:
    command = [STREAMRL, "up", CONFIG, "--name", name, *SETTINGS, *overrides]
    subprocess.run(command, cwd=out, check=True, stdout=subprocess.DEVNULL)


def run_trl(out: Path, warm: Path, prompts: Path, steps: int) -> dict:
    script = ROOT / "benchmarks/peers/trl_grpo.py"
    threads = str(os.cpu_count())
    command = [TRL_PYTHON, script, warm, prompts, out / "trl", str(steps), str(RATE), threads]
    log = out / "trl.log"
    with log.open("w") as errors:
        done = subprocess.run(command, cwd=out, check=True, stdout=subprocess.PIPE, stderr=errors, text=True)
    facts = json.loads(done.stdout.strip().splitlines()[-1])
    return {**facts, "score": held_out_score(out / "trl")}


def held_out_score(folder: Path) -> float:
    """The greedy score on the held-out items, by one scorer for both sides."""
    config = load(CONFIG)
    torch.set_num_threads(1)
    task, tokenizer = resolve_task(config.task.name, config.task.held_out), load_tokenizer(folder)
    version, limit = Version(0, 0), config.rollout.sampling.max_new_tokens
    engine = TorchEngine(load_model(folder, "float32"), version, slots=256, max_length=16, kv_bytes=2**26)
    evaluation = Evaluator(engine, held_out_prompts(task), tokenizer, max_new_tokens=limit).run(version)
    mean = mean_score(Scorer(resolve_reward(config.reward.function)).score(evaluation.items)).mean
    assert mean is not None
    return mean


if __name__ == "__main__":
    sys.exit(main())
