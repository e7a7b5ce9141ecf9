"""One rank of the learner's process that trains adapters, without Ray, under one backend after the other.

    python adapter_core_rank.py STORE RANK WORLD FOLDER OUT

FOLDER has a model, and rows in a folder for each run (`prepare`). OUT gets metrics and digests as JSON; the folder of a
run gets its checkpoint and its export.
"""

import asyncio
import json
import pickle
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from support.learner.probe_learner import write_rows
from support.megatron.core_rank import digests_of, one_step
from support.megatron.cpu_shim import cuda_is_cpu

from streamrl.config import Config, dump
from streamrl.config.schema.learner import LearnerConfig, LoraConfig, MegatronConfig, OptimizerConfig
from streamrl.config.schema.run import ModelConfig, QueueConfig
from streamrl.models.load import prepare_model_folder
from streamrl.services.learner.core import LearnerCore
from streamrl.services.run.folder import RunFolder
from streamrl.weights.served import ServedVersions
from streamrl.weights.tensors import weights_digest

STEPS = 2
RUNS: dict[str, dict[str, Any]] = {
    "fsdp": {},
    "tensor": {"backend": "megatron", "megatron": MegatronConfig(tensor_parallel=2)},
    "pipeline": {"backend": "megatron", "megatron": MegatronConfig(pipeline_parallel=2)},
}
GOES_ON = {"fsdp": "tensor", "tensor": "pipeline", "pipeline": "fsdp"}


def config_of(folder: Path, run: str, layout: str) -> Config:
    optimizer = OptimizerConfig(lr=1e-2, warmup_steps=0, eps=1e-6)
    learner = LearnerConfig(num_workers=2, steps=10, optimizer=optimizer, lora=LoraConfig(rank=4), **RUNS[layout])
    queue = QueueConfig(durability="memory", segment_bytes=2**20)
    return Config(name=run, model=ModelConfig(path=str(folder / "model")), learner=learner, queue=queue)


def prepare(folder: Path) -> None:
    """What the ranks of all runs find."""
    prepare_model_folder(ModelConfig(preset="tiny-qwen3"), 0, folder / "model")
    for run in RUNS:
        config = config_of(folder, run, run)
        (folder / run).mkdir()
        RunFolder.create(folder / run, run)
        (folder / run / "config.toml").write_text(dump(config))
        (folder / run / "frames").write_bytes(pickle.dumps(asyncio.run(write_rows(config, folder / run, 2))))


def learned(folder: Path, run: str, store: str, rank: int) -> dict[str, Any]:
    """Two steps with a version before and behind them, a checkpoint and an export; then another layout goes on."""
    frames = pickle.loads((folder / run / "frames").read_bytes())
    core = LearnerCore(RunFolder.open(folder / run), config_of(folder, run, run), rank, Path(f"{store}.{run}"))
    core.build()
    found: dict[str, Any] = {"merged": [core.weight_digest()], "versions": [published(core)]}
    found["metrics"] = [one_step(core, frames, step) for step in range(STEPS)]
    found["merged"].append(core.weight_digest())
    found["versions"].append(published(core))
    found["saved"] = digests_of(core)
    core.save()
    core.export()
    core.close()
    config = config_of(folder, run, GOES_ON[run])
    again = LearnerCore(RunFolder.open(folder / run), config, rank, Path(f"{store}.{run}.again"))
    found["checkpoint"] = again.build()["checkpoint"]
    found["loaded"] = digests_of(again)
    found["versions"].append(published(again))
    found["resumed"] = one_step(again, frames, STEPS)
    again.close()
    return found


def published(core: LearnerCore) -> dict[str, Any] | None:
    """Of a version: its names, its digest, that of its base, and that of what a replica makes of the two."""
    written = core.publish(core.snapshot_weights())
    if written is None:
        return None
    manifest = written.manifest
    assert manifest.adapters is not None
    with ServedVersions(core._run.run_id, core._run.key()).open(manifest) as tensors:
        served = weights_digest(tensors.items())
    names = [tensor.name for tensor in manifest.tensors]
    return {"names": names, "digest": manifest.digest, "base": manifest.adapters.base.digest, "served": served}


def main(store: str, rank: str, world: str, folder: str, out: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with cuda_is_cpu():
        found = {run: learned(Path(folder), run, store, int(rank)) for run in RUNS}
    Path(out).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
