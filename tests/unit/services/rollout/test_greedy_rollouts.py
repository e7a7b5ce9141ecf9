"""The greedy rollout of `remax`: one of each group, asked for and logged as such, and in nothing that is trained."""

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.learner.probe_learner import finished
from support.learner.small_lease import lease
from support.runs.probe_parts import with_replica

from streamrl.algorithms.group_sampling import GroupSampling
from streamrl.buffers.segments.reader import SegmentReader
from streamrl.config import Config
from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.learner import LearnerConfig, OverlongConfig
from streamrl.config.schema.rollout import RolloutConfig, SamplingConfig
from streamrl.config.schema.run import ModelConfig, QueueConfig
from streamrl.engines.torch.engine import TorchEngine
from streamrl.models.load import load_model, prepare_model_folder
from streamrl.services.learner.step_plan import make_plan, shares_of
from streamrl.services.rollout.actor import RolloutReplica
from streamrl.services.rollout.completions import CompletionLog
from streamrl.services.run.folder import RunFolder
from streamrl.types import GenerationRequest, SamplingParams, Ticket, Version

GROUP_SIZE = 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("greedy") / "model"
    prepare_model_folder(ModelConfig(preset="tiny-qwen3"), 0, folder)
    return folder


def configured(model: Path | str = "model", *, advantage: str = "remax", **learner) -> Config:
    return Config(
        model=ModelConfig(path=str(model)),
        rollout=RolloutConfig(
            engine="scripted", group_size=GROUP_SIZE, sampling=SamplingConfig(temperature=0.7, max_new_tokens=16)
        ),
        learner=LearnerConfig(algorithm=AlgorithmConfig(advantage=advantage), **learner),
        queue=QueueConfig(durability="memory", segment_bytes=2**20),
    )


@pytest.mark.parametrize(("advantage", "last"), [("remax", 0.0), ("grpo", 0.7)])
def test_a_replica_asks_for_the_last_sample_of_a_group_greedily_and_only_under_remax(
    advantage: str, last: float, model: Path, tmp_path: Path
) -> None:
    async def asked(replica: RolloutReplica, run: RunFolder) -> list[GenerationRequest]:
        return [request for _, request in await replica._requests.of([Ticket(3, 3, 0, 0, 9)])]

    requests = asyncio.run(with_replica(configured(model, advantage=advantage), tmp_path / "run", asked))
    assert [one.sampling.temperature for one in requests] == [0.7, 0.7, 0.7, last]
    assert {one.sampling.max_new_tokens for one in requests} == {16}
    assert [one.request_id[-2:] for one in requests] == ["/0", "/1", "/2", "/3"]


def test_the_log_says_how_each_rollout_was_drawn(tmp_path: Path) -> None:
    log = CompletionLog(tmp_path, configured(), "rollout-0", 0)
    frame, _ = asyncio.run(log.append([finished(number, sample) for number in range(2) for sample in (3, 0, 2)]))
    log.close()
    sampling = SegmentReader(tmp_path).read(frame).column("sampling").to_pylist()
    assert [one["temperature"] for one in sampling] == [0.0, 0.7, 0.7] * 2
    assert {(one["top_p"], one["top_k"], one["min_p"]) for one in sampling} == {(1.0, 0, 0.0)}


def test_the_greedy_one_is_the_same_whatever_its_seed_and_the_others_are_not(model: Path) -> None:
    engine = TorchEngine(load_model(model, "float32"), Version(0, 0), slots=8, max_length=32, kv_bytes=2**22)
    sampling, prompt = GroupSampling(configured()), np.array([1, 5, 9], np.int32)
    requests = [
        GenerationRequest(f"{seed}/{sample}", prompt, seed, sampling.of(sample), ())
        for seed in range(3)
        for sample in (0, GROUP_SIZE - 1)
    ]
    ids = [tuple(result.token_ids.tolist()) for result in engine.generate(requests)]
    assert len(set(ids[1::2])) == 1
    assert len(set(ids[0::2])) == 3
    assert sampling.of(0) == SamplingParams(temperature=0.7, max_new_tokens=16)


def test_greedy_rows_are_in_no_denominator_and_are_not_trained() -> None:
    given, config = lease(rows=40, seed=4), configured()
    plan = make_plan(given, config, hidden_size=64)
    trained = given.valid & (given.sample_index != GROUP_SIZE - 1)
    ((share,),) = shares_of(plan, 0, config)
    np.testing.assert_array_equal(share.valid, trained)
    np.testing.assert_array_equal(share.scored, given.valid)
    assert plan.total_tokens == [given.sampled_tokens[trained].sum()]
    assert plan.total_rows == [(trained & (given.sampled_tokens > 0)).sum()]
    assert (share.advantages[~trained] == 0.0).all()


def test_rewards_are_against_the_greedy_one_of_the_group_and_both_are_punished_for_their_length() -> None:
    given = replace(lease(rows=40, seed=4), valid=np.ones(40, bool), rewards=np.arange(40) % 7 / 7.0)
    config = configured(overlong=OverlongConfig(buffer=8, penalty=0.5, mask_truncated=True))
    plan = make_plan(given, config, hidden_size=64)
    punished = np.frombuffer(plan.rewards).reshape(-1, GROUP_SIZE)
    assert (punished < given.rewards.reshape(-1, GROUP_SIZE)).any()
    np.testing.assert_array_equal(np.frombuffer(plan.advantages).reshape(-1, GROUP_SIZE), punished - punished[:, -1:])
    trained = (given.sample_index != GROUP_SIZE - 1) & ~given.truncated & (given.sampled_tokens > 0)
    assert plan.total_rows == [trained.sum()]
