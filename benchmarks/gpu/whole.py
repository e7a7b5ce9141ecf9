"""A whole run on one GPU, learner and one replica on it, against the engine alone with the same requests.

    python -m gpu.whole

The model has the shape of Qwen3-0.6B and random weights, 32 prompts x 8 answers x 256 tokens a step. Tokens a second
are those of the run's own metrics, the median of the steps after the third. The engine alone has the GPU for itself.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from gpu.engine import engine_of, rate
from gpu.rows import tell
from gpu.shapes import config_of, model_of
from streamrl.models.tokenizer import load_tokenizer, write_character_tokenizer

GROUPS, GROUP_SIZE, NEW, STEPS, KV_GIB = 32, 8, 256, 8, 14
LIMIT_S = 100
CONFIG = """
name = "whole"
[task]
name = "arithmetic"
[model]
path = "model"
dtype = "bfloat16"
[rollout]
device = "cuda"
gpu_share = 0.5
threads = 4
group_size = {group_size}
slots = 256
kv_bytes = {kv_bytes}
[rollout.sampling]
max_new_tokens = {new}
[reward]
function = "parity:score"
[learner]
device = "cuda"
gpu_share = 0.5
threads = 4
steps = {steps}
groups_per_step = {groups}
micro_batch_tokens = 16384
max_staleness = 2
[learner.optimizer]
lr = 1e-6
[eval]
every = 1000
max_items = 8
[checkpoint]
every = 1000
"""
REWARD = """import zlib


def score(completion, *, prompt, answer=""):
    return float(zlib.crc32(completion.encode()) % 2)
"""


def main() -> None:
    alone = engine_alone()
    tell(f"engine alone, {GROUPS} x {GROUP_SIZE} x {NEW} tokens", alone, "tokens/s")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_inputs(folder)
        code = run(folder)
        steps = [json.loads(line) for line in (folder / "runs/whole/metrics.jsonl").read_text().splitlines()]
    tell("whole run: failed", int(code != 0), "", at_most=0)
    late = steps[3:]
    print(json.dumps(late[-1]), flush=True)
    for key, unit in (("tokens/s", "tokens/s"), ("time/step", "s"), ("time/wait", "s"), ("time/forward_backward", "s")):
        tell(f"whole run: {key}", statistics.median(step[key] for step in late), unit)
    told = statistics.median(step["tokens/s"] for step in late)
    tell("whole run against the engine alone", told / alone, "x", at_least=0.9)


def engine_alone() -> float:
    engine = engine_of(model_of("0.6B"), 256, KV_GIB)
    rate(engine, [8] * 256, "warm")
    found = rate(engine, [NEW] * (GROUPS * GROUP_SIZE), "alone")
    engine.close()
    torch.cuda.empty_cache()
    return found


def write_inputs(folder: Path) -> None:
    """Model, tokenizer, reward and configuration, as a user has them."""
    model = folder / "model"
    model.mkdir()
    write_character_tokenizer("0123456789+= ", 1024, model)
    tokenizer, config = load_tokenizer(model), config_of("0.6B")
    made = model_of("0.6B")
    made.config.eos_token_id = config.eos_token_id = tokenizer.eos_token_ids[0]
    made.config.pad_token_id = tokenizer.pad_token_id
    made.generation_config.eos_token_id = tokenizer.eos_token_ids[0]
    made.cpu().save_pretrained(model)
    (folder / "parity.py").write_text(REWARD)
    values = {"group_size": GROUP_SIZE, "new": NEW, "steps": STEPS, "groups": GROUPS, "kv_bytes": KV_GIB * 2**30}
    (folder / "whole.toml").write_text(CONFIG.format(**values))


def run(folder: Path) -> int:
    process = subprocess.Popen(
        [sys.executable, "-m", "streamrl.services.cli.main", "up", "whole.toml"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])},
        start_new_session=True,
    )
    try:
        return process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGINT)
        return process.wait()


if __name__ == "__main__":
    main()
