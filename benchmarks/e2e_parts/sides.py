"""The two sides of `bench_e2e`, each a process of its own on both cores, and the one scorer that judges both.

Both begin from the same warm model and train the same prompts in the same order: `SETTINGS`, and the same in
`peers/trl_grpo.py`.
"""

import json
import os
import subprocess
import sys
from functools import cached_property
from pathlib import Path

import torch
from learning_study.curves import curve_of

from e2e_parts.curves import Curve, Point
from streamrl.config import load
from streamrl.config.loading.load import load_args
from streamrl.engines.torch.engine import TorchEngine
from streamrl.evaluation import Evaluator, held_out_prompts, mean_score
from streamrl.models.load import load_model
from streamrl.models.tokenizer import load_tokenizer
from streamrl.observability.metrics import read_metrics
from streamrl.rewards.scorer import Scorer, resolve_reward
from streamrl.tasks.order import PromptOrder
from streamrl.tasks.resolve import resolve_task
from streamrl.types import Version

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "configs/quickstart.toml"
TRL_PYTHON = ROOT / ".venvs/trl/bin/python"
TRL_SCRIPT = ROOT / "benchmarks/peers/trl_grpo.py"
STREAMRL = Path(sys.executable).with_name("streamrl")
SETTINGS = ("--rollout.group_size", "8", "--learner.groups_per_step", "64", "--rollout.sampling.temperature", "1.0")
ROLLOUTS_A_STEP = 8 * 64


class Sides:
    """Runs either side for some steps at some rate. out: everything they write goes there.

    Example:
        sides = Sides(out, steps=150)
        ours, theirs = sides.streamrl(1e-3), sides.trl(1e-3)
    """

    def __init__(self, out: Path, steps: int) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self._out = out
        self._steps = steps

    def streamrl(self, rate: float) -> dict:
        """A run without evaluations in between: what `summary.json` says, and `score`."""
        return self._summary(self._train(rate, "speed", every=self._steps))

    def streamrl_curve(self, rate: float, every: int) -> Curve:
        """A run that is evaluated each `every` steps, by its own second engine."""
        folder = self._train(rate, f"curve-{rate:g}", every)
        inner = tuple(
            Point(point.step * ROLLOUTS_A_STEP, point.score)
            for point in curve_of(read_metrics(folder / "metrics.jsonl"))
            if 0 < point.step < self._steps
        )
        return self._curve("streamrl", rate, inner, self._summary(folder)["score"])

    def trl(self, rate: float) -> dict:
        """A training without saves in between: its `rollouts_per_s`, versions, and `score`."""
        facts = self._train_trl(rate, every=0)
        return {**facts, "score": held_out_score(self._out / "trl")}

    def trl_curve(self, rate: float, every: int) -> Curve:
        """A training that saves each `every` steps; what it saved is scored afterwards."""
        self._train_trl(rate, every)
        inner = tuple(
            Point(step * ROLLOUTS_A_STEP, held_out_score(self._out / f"trl-{step}"))
            for step in range(every, self._steps, every)
        )
        return self._curve("TRL", rate, inner, held_out_score(self._out / "trl"))

    @cached_property
    def before(self) -> float:
        """The held-out score of the model from which both begin."""
        return held_out_score(self._warm)

    def _curve(self, side: str, rate: float, inner: tuple[Point, ...], last: float) -> Curve:
        return Curve(side, rate, (Point(0, self.before), *inner, Point(self._steps * ROLLOUTS_A_STEP, last)))

    @cached_property
    def _warm(self) -> Path:
        """The quickstart's model after a warm-up of its own, made once: the figures do not move with it."""
        folder = self._out / "runs/warm"
        if not (folder / "summary.json").exists():
            warmup = ("--warmup.max_steps", "400", "--warmup.batch_size", "256", "--warmup.target_score", "0.33")
            self._up("warm", *warmup, "--learner.steps", "1", "--eval.max_items", "16")
        return folder / "start"

    @cached_property
    def _prompts(self) -> Path:
        """The prompts of the run in its data order, as TRL's data set."""
        config = load_args(CONFIG, SETTINGS)
        task = resolve_task(config.task.name, config.task.held_out)
        order = PromptOrder(task.num_train, config.seed)
        prompts = [task.train(order.at(n)[1]) for n in range(self._steps * config.learner.groups_per_step)]
        rows = [{"prompt": prompt.text, **json.loads(prompt.payload)} for prompt in prompts]
        path = self._out / "prompts.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    def _train(self, rate: float, name: str, every: int) -> Path:
        """The folder of a finished run."""
        model = ("--model.preset", "none", "--model.path", str(self._warm), "--warmup.max_steps", "0")
        optimizer = ("--learner.optimizer.lr", str(rate), "--learner.optimizer.decay", "constant")
        steps = ("--learner.steps", str(self._steps), "--eval.every", str(every))
        self._up(name, "--fresh", *steps, *model, *optimizer)
        return max(self._out.glob(f"runs/{name}*/summary.json"), key=os.path.getmtime).parent

    def _summary(self, folder: Path) -> dict:
        summary = json.loads((folder / "summary.json").read_text())
        return {**summary, "score": held_out_score(Path(summary["export"]))}

    def _up(self, name: str, *overrides: str) -> None:
        command = [STREAMRL, "up", CONFIG, "--name", name, *SETTINGS, *overrides]
        subprocess.run(command, cwd=self._out, check=True, stdout=subprocess.DEVNULL)

    def _train_trl(self, rate: float, every: int) -> dict:
        numbers = (str(self._steps), str(rate), str(os.cpu_count()), str(every))
        command = [TRL_PYTHON, TRL_SCRIPT, self._warm, self._prompts, self._out / "trl", *numbers]
        with (self._out / "trl.log").open("w") as errors:
            done = subprocess.run(command, cwd=self._out, check=True, stdout=subprocess.PIPE, stderr=errors, text=True)
        return json.loads(done.stdout.strip().splitlines()[-1])


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
