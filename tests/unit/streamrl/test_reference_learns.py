"""The reference loop and the learner of the stream on the same rows: the same loss and the same weights, to the bit."""

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.learner.probe_learner import GROUP_SIZE, built, lease, train, write_rows

from streamrl.config import Config
from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.learner import LearnerConfig, OptimizerConfig, OverlongConfig
from streamrl.config.schema.rollout import RolloutConfig, SamplingConfig
from streamrl.config.schema.run import ModelConfig
from streamrl.models.load import prepare_model_folder
from streamrl.reference import Reference
from streamrl.services.learner.step_plan import shares_of
from streamrl.weights.tensors import weights_digest

OVERLONG = {
    "none": OverlongConfig(),
    "shaped": OverlongConfig(buffer=3, penalty=0.5),
    "masked": OverlongConfig(mask_truncated=True),
    "both": OverlongConfig(buffer=3, penalty=0.5, mask_truncated=True),
}


@pytest.mark.parametrize("advantage", ["reinforce_pp", "reinforce_pp_baseline", "opo"])
def test_one_step_is_the_same_whatever_becomes_of_rows_at_the_end_of_their_budget(
    advantage: str, tmp_path: Path
) -> None:
    folder = prepare_model_folder(ModelConfig(preset="tiny-qwen3"), 0, tmp_path / "model")
    digests = set()
    for name, overlong in OVERLONG.items():
        config = Config(
            model=ModelConfig(path=str(folder)),
            rollout=RolloutConfig(group_size=GROUP_SIZE, sampling=SamplingConfig(max_new_tokens=5)),
            learner=LearnerConfig(
                algorithm=AlgorithmConfig(advantage=advantage),
                optimizer=OptimizerConfig(lr=1e-2, warmup_steps=0),
                overlong=overlong,
                steps=3,
            ),
        )
        with built(config, tmp_path / name) as core:
            written = asyncio.run(write_rows(config, tmp_path / name, 1))
            given = lease(0, written)
            plan = core.plan(given)
            ((share,),) = shares_of(plan, 0, config)
            rows = replace(core._rows(plan, share), rewards=given.rewards, valid=given.valid)
            (metrics,) = train(core, written, range(1))
            digest = core.weight_digest()
        loop = Reference(config)
        loss, norm = loop.learn(0, rows, given.truncated, np.zeros((given.num_rows, 0)))
        assert (loss, norm) == (metrics["loss/policy"], metrics["grad/norm"])
        assert weights_digest(loop.weights().items()) == digest
        digests.add(digest)
    # What `learner.overlong` says has its part in each.
    assert len(digests) == len(OVERLONG)
