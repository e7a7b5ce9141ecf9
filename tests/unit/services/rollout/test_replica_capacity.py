"""A replica takes groups by what its server says of its KV cache."""

import asyncio
from pathlib import Path

import msgspec
import numpy as np
from fake_vllm_program import write_program
from support.runs.probe_parts import LONGEST_PROMPT, finished, with_replica

from streamrl.config import Config
from streamrl.config.schema.run import ModelConfig
from streamrl.models.load import prepare_model_folder
from streamrl.services.rollout.actor import RolloutReplica
from streamrl.services.run.folder import RunFolder
from streamrl.types import GenerationRequest, Version


def test_no_group_is_taken_while_the_server_says_that_its_cache_is_full(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    model = prepare_model_folder(ModelConfig(preset="tiny-qwen3"), 0, tmp_path / "model")
    tree = {
        "name": "run",
        "model": {"path": str(model)},
        "rollout": {
            "engine": "vllm",
            "group_size": 4,
            "sampling": {"max_new_tokens": 4},
            "server": {"python": str(write_program(tmp_path, kv_use=0.95))},
        },
    }

    async def use(replica: RolloutReplica, run: RunFolder) -> tuple[bool, int]:
        replica._state.update(0, Version(0, 0))
        replica._state.loaded(Version(0, 0))
        replica._rollouts._running.issue("runs", finished(0, 0).issued)
        prompt = np.ones(LONGEST_PROMPT, np.int32)
        while not replica._capacity.tight:
            replica._news.clear()
            replica._state.accepted(1)
            replica._thread.submit([GenerationRequest("other", prompt, 0, replica._log.sampling.drawn, ())])
            await replica._news.wait()
        room = asyncio.create_task(replica._wait_for_capacity())
        await asyncio.wrap_future(replica._thread.stats())
        waits = not room.done()
        replica._rollouts._running.ended("runs")
        replica._collect([], idle=True)
        return waits, await room

    waits, groups = asyncio.run(with_replica(msgspec.convert(tree, Config), tmp_path / "run", use))
    assert waits
    assert groups == 1
