"""One rank of the learner's process, without Ray, under one backend after the other.

    python core_rank.py STORE RANK WORLD FOLDER OUT

FOLDER has a model, and rows in a folder for each run (`prepare`). OUT gets metrics, digests and versions as JSON.
"""

import asyncio
import json
import pickle
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from support.learner.probe_learner import lease, write_rows
from support.megatron.cpu_shim import cuda_is_cpu

from streamrl.clock import SystemClock
from streamrl.config import Config
from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.learner import LearnerConfig, MegatronConfig, OptimizerConfig
from streamrl.config.schema.run import ModelConfig, QueueConfig
from streamrl.learner.checkpoint.digest import tensor_digest
from streamrl.models.load import prepare_model_folder
from streamrl.observability.timeline import StepTimer
from streamrl.services.learner.core import LearnerCore
from streamrl.services.run.folder import RunFolder

STEPS = 3
HELD = AlgorithmConfig(kl_coef=0.5, kl_in="reward", kl_estimator="k1")
"""Rewards of rows pay for the distance from where the run began."""
VALUED = AlgorithmConfig(advantage="gae")
RUNS: dict[str, dict[str, Any]] = {
    "fsdp": {},
    "tensor": {"backend": "megatron", "megatron": MegatronConfig(tensor_parallel=2)},
    "pipeline": {"backend": "megatron", "megatron": MegatronConfig(pipeline_parallel=2)},
    "data": {"backend": "megatron", "megatron": MegatronConfig()},
    "context": {"backend": "megatron", "megatron": MegatronConfig(context_parallel=2)},
    "fsdp_held": {"algorithm": HELD},
    "pipeline_held": {
        "backend": "megatron",
        "megatron": MegatronConfig(pipeline_parallel=2),
        "algorithm": HELD,
    },
    "fsdp_critic": {"algorithm": VALUED},
    "pipeline_critic": {
        "backend": "megatron",
        "megatron": MegatronConfig(pipeline_parallel=2),
        "algorithm": VALUED,
    },
    "tensor_held": {"backend": "megatron", "megatron": MegatronConfig(tensor_parallel=2), "algorithm": HELD},
}
CHAIN: dict[str, dict[str, Any]] = {
    "tensor": RUNS["tensor"],
    "pipeline": RUNS["pipeline"],
    "alone": {"num_workers": 1, "backend": "megatron", "megatron": MegatronConfig(distributed_optimizer=False)},
}
"""One run with a critic, that each of these layouts goes on with in turn."""


def config_of(folder: Path, run: str, settings: dict[str, Any] | None = None) -> Config:
    optimizer = OptimizerConfig(lr=1e-3, warmup_steps=0, eps=1e-6)
    return Config(
        name=run,
        model=ModelConfig(path=str(folder / "model")),
        learner=LearnerConfig(
            **{"num_workers": 2, "steps": 10, "optimizer": optimizer, **(RUNS[run] if settings is None else settings)}
        ),
        queue=QueueConfig(durability="memory", segment_bytes=2**20),
    )


def prepare(folder: Path) -> None:
    """What the ranks of all runs find."""
    prepare_model_folder(ModelConfig(preset="tiny-qwen3"), 0, folder / "model")
    for run in (*RUNS, "chain"):
        config = config_of(folder, run, RUNS.get(run, {}))
        (folder / run).mkdir()
        RunFolder.create(folder / run, run)
        (folder / run / "frames").write_bytes(pickle.dumps(asyncio.run(write_rows(config, folder / run, 2))))


def learned(folder: Path, run: str, store: str, rank: int, go_on: str) -> dict[str, Any]:
    """Three steps with a version and a checkpoint each; then, in another process's place, the run `go_on` goes on with
    the checkpoint, in its own layout."""
    frames = pickle.loads((folder / run / "frames").read_bytes())
    core = LearnerCore(RunFolder.open(folder / run), config_of(folder, run), rank, Path(f"{store}.{run}"))
    core.build()
    found: dict[str, Any] = {"metrics": [], "published": [], "digests": []}
    with ThreadPoolExecutor(1) as publishing:
        for step in range(STEPS):
            digest, taken = core.weight_digest(), core.snapshot_weights()
            written = publishing.submit(core.publish, taken)
            found["metrics"].append(one_step(core, frames, step))
            version = written.result()
            found["digests"].append(digest)
            found["published"].append(None if version is None else version.manifest.digest)
    core.save()
    core.close()
    again = LearnerCore(RunFolder.open(folder / run), config_of(folder, go_on), rank, Path(f"{store}.{run}.again"))
    found["checkpoint"] = again.build()["checkpoint"]
    found["resumed"] = one_step(again, frames, STEPS)
    again.close()
    return found


def chained(folder: Path, store: str, rank: int) -> dict[str, Any]:
    """Of each layout the step that it went on from, the digest of each tensor as it was loaded and as it was saved, and
    the metrics of its two steps. A layout of one rank leaves the others out. Last, all steps by the first layout."""
    frames = pickle.loads((folder / "chain" / "frames").read_bytes())
    found: dict[str, Any] = {}
    layouts = {**CHAIN, "never_left": {**CHAIN["tensor"], "steps": 10}}
    for name, settings in layouts.items():
        if rank >= settings.get("num_workers", 2):
            continue
        config = config_of(folder, "chain", {**settings, "algorithm": VALUED})
        core = LearnerCore(RunFolder.open(folder / "chain"), config, rank, Path(f"{store}.chain.{name}"))
        built = core.build(resume=name != "never_left")
        step, loaded = core.step, digests_of(core)
        count = 2 if name in CHAIN else 2 * len(CHAIN)
        metrics = [one_step(core, frames, step + number) for number in range(count)]
        saved = digests_of(core)
        if name in CHAIN:
            core.save()
        core.close()
        found[name] = {"from": built.get("checkpoint"), "loaded": loaded, "saved": saved, "metrics": metrics}
    return found


def digests_of(core: LearnerCore) -> dict[str, str]:
    """Of weights and moments of the policy and the critic, whole."""
    return {name: tensor_digest(whole) for name, whole in core._state_tensors()}


def one_step(core: LearnerCore, frames: list[Any], step: int) -> dict[str, float]:
    timer = StepTimer(SystemClock(), ("read", "pack", "forward_backward", "optimizer"))
    return core.train(core.plan(lease(step, frames) if core._rank == 0 else None), timer)


def main(store: str, rank: str, world: str, folder: str, out: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    elsewhere = {"fsdp": "tensor", "tensor": "pipeline", "pipeline": "data", "data": "context", "context": "fsdp"}
    elsewhere |= {"fsdp_held": "tensor_held", "tensor_held": "pipeline_held", "pipeline_held": "fsdp_held"}
    elsewhere |= {"fsdp_critic": "pipeline_critic", "pipeline_critic": "fsdp_critic"}
    with cuda_is_cpu():
        found = {run: learned(Path(folder), run, store, int(rank), elsewhere[run]) for run in RUNS}
        found["chain"] = chained(Path(folder), store, int(rank))
    Path(out).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
