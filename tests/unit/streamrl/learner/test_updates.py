"""Several updates a step: each is the field's formula against the policy before the first, and resumes are exact."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from streamrl.config.schema.algorithm import AlgorithmConfig, RejectionConfig
from streamrl.config.schema.learner import OptimizerConfig
from streamrl.errors import NonFiniteError
from streamrl.learner.batch.mini_batch_cut import mini_batch_of
from streamrl.learner.batch.mini_batches import MiniBatch
from streamrl.learner.batch.packing import PackedBatch, pack
from streamrl.learner.batch.rows import count_targets, select_rows
from streamrl.learner.fsdp import FsdpBackend, build
from streamrl.learner.model.policy import PolicyModel
from streamrl.learner.parallel.process_group import LearnerGroup, open_group
from streamrl.types import RolloutRows

TEMPERATURE = 0.9
OPTIMIZER = OptimizerConfig(lr=3e-3, warmup_steps=3, max_grad_norm=0.5)
LAG = 2


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LearnerGroup]:
    group = open_group(0, 1, tmp_path_factory.mktemp("group") / "store", device=torch.device("cpu"))
    yield group
    group.close()


def make_model() -> Qwen3ForCausalLM:
    torch.manual_seed(5)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=19,
            hidden_size=24,
            intermediate_size=35,
            num_hidden_layers=2,
            num_attention_heads=3,
            num_key_value_heads=1,
            head_dim=8,
            max_position_embeddings=64,
            tie_word_embeddings=True,
        )
    )


def make_batch(step: int) -> tuple[RolloutRows, np.ndarray]:
    """Twelve rows of three groups, sampled LAG steps before `step` by a policy near the model's."""
    rng = np.random.default_rng([7, step])
    lengths = rng.integers(2, 12, 12)
    count = int(lengths.sum())
    offsets, origin = np.concatenate([[0], np.cumsum(lengths)]), np.ones(count, np.uint8)
    origin[offsets[:-1]] = 0
    batch = RolloutRows(
        offsets=offsets,
        token_ids=rng.integers(0, 19, count).astype(np.int32),
        token_origin=origin,
        rollout_logprobs=rng.normal(-3, 0.2, count).astype(np.float32),
        token_steps=np.full(count, step - LAG),
        group=np.arange(12) // 4,
        sample_index=np.arange(12) % 4,
        rewards=np.zeros(12),
        valid=np.ones(12, bool),
    )
    return batch, rng.normal(0, 1, 12)


def cut(step: int, mini_batches: int) -> list[MiniBatch]:
    rows, advantages = make_batch(step)
    mini_batch_N = mini_batch_of(rows.group, mini_batches)
    parts = [np.flatnonzero(mini_batch_N == number) for number in range(mini_batches)]
    chosen = [(select_rows(rows, part), advantages[part]) for part in parts]
    return [MiniBatch([pack(part, mine, 40, step=step)], count_targets(part)) for part, mine in chosen]


def make_backend(group: LearnerGroup, algorithm: AlgorithmConfig) -> FsdpBackend:
    return build(
        make_model(), optimizer=OPTIMIZER, algorithm=algorithm, total_steps=40, temperature=TEMPERATURE, group=group
    )


def plain_updates(algorithm: AlgorithmConfig, mini_batches: int, epochs: int) -> PolicyModel:
    """One step by the formulas, with torch's own optimizer: decoupled PPO with truncated importance weights, one mean
    over the tokens of each mini-batch."""
    policy = PolicyModel(make_model())
    rate = OPTIMIZER.lr / OPTIMIZER.warmup_steps
    optimizer = torch.optim.AdamW(
        policy.parameters(), lr=rate, betas=OPTIMIZER.betas, eps=OPTIMIZER.eps, weight_decay=0.0
    )
    parts = [[packed for share in mini_batch.shares for packed in share] for mini_batch in cut(0, mini_batches)]
    with torch.no_grad():
        before = {id(packed): policy(packed, TEMPERATURE)[0] for packs in parts for packed in packs}
    for _ in range(epochs):
        for packs in parts:
            terms = torch.cat([surrogate(policy, packed, before[id(packed)], algorithm) for packed in packs])
            optimizer.zero_grad()
            (-terms.mean()).backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), OPTIMIZER.max_grad_norm)
            optimizer.step()
    return policy


def surrogate(
    policy: PolicyModel, packed: PackedBatch, start_K: torch.Tensor, algorithm: AlgorithmConfig
) -> torch.Tensor:
    rollout_K, advantages_K = packed.rollout_logprobs, packed.advantages
    proximal_K = {
        "recompute": start_K,
        "rollout": rollout_K,
        "interpolate": start_K + (rollout_K - start_K) / LAG,
    }[algorithm.proximal]
    weight_K = torch.exp(proximal_K - rollout_K).clamp(max=algorithm.tis_cap)
    if algorithm.rejection.measure == "ratio":
        weight_K = weight_K * (torch.exp(start_K - rollout_K) <= algorithm.rejection.high)
    ratio_K = torch.exp(policy(packed, TEMPERATURE)[0] - proximal_K)
    clipped_K = ratio_K.clamp(1 - algorithm.clip_low, 1 + algorithm.clip_high)
    return weight_K * torch.minimum(ratio_K * advantages_K, clipped_K * advantages_K)


@pytest.mark.parametrize("proximal", ["recompute", "interpolate", "rollout"])
@pytest.mark.parametrize(("mini_batches", "epochs"), [(1, 1), (3, 1), (1, 3), (2, 2)])
@pytest.mark.parametrize("rejection", [RejectionConfig(), RejectionConfig(measure="ratio", high=1.05)])
def test_each_update_is_the_formula_against_the_policy_before_the_first(
    group: LearnerGroup, proximal: str, mini_batches: int, epochs: int, rejection: RejectionConfig
) -> None:
    # Bounds so near that they act within a step.
    algorithm = AlgorithmConfig(proximal=proximal, clip_low=0.002, clip_high=0.003, tis_cap=1.1, rejection=rejection)
    backend = make_backend(group, algorithm)
    metrics = backend.step_batch(cut(0, mini_batches), epochs)
    plain = dict(plain_updates(algorithm, mini_batches, epochs).named_parameters())
    for name, shard in backend.policy.shards.items():
        torch.testing.assert_close(shard.detach(), plain[f"model.{name}"].detach(), rtol=0, atol=2e-6)
    assert backend.steps_done == 1
    tokens = sum(mini_batch.total.tokens for mini_batch in cut(0, mini_batches))
    assert metrics[f"correction/lag_{LAG}/tokens"] == pytest.approx(tokens)
    if proximal == "recompute" and epochs > 1:
        truncated = metrics["correction/truncated"]
        assert metrics["ratio/clip_fraction"] > truncated, "no later update came to a bound: nothing was tested"


def test_a_learner_resumed_between_steps_of_several_updates_goes_on_to_the_bit(group: LearnerGroup) -> None:
    backend, resumed = (make_backend(group, AlgorithmConfig()) for _ in range(2))
    for step in range(3):
        backend.step_batch(cut(step, 2), 2)
    tensors = {name: tensor.clone() for name, tensor in backend.state_tensors()}
    resumed.load_state(tensors.__getitem__, backend.state_extra())
    for step in range(3, 6):
        first, second = (one.step_batch(cut(step, 2), 2) for one in (backend, resumed))
        assert first["grad/norm"] == second["grad/norm"]
        assert backend.weight_digest() == resumed.weight_digest()
    assert resumed.steps_done == 6


def test_a_checkpoint_from_before_steps_had_several_updates_is_read(group: LearnerGroup) -> None:
    backend, resumed = (make_backend(group, AlgorithmConfig()) for _ in range(2))
    backend.step_batch(cut(0, 1))
    tensors = {name: tensor.clone() for name, tensor in backend.state_tensors()}
    extra = backend.state_extra()
    del extra["updates_done"]
    resumed.load_state(tensors.__getitem__, extra)
    for one in (backend, resumed):
        one.step_batch(cut(1, 1))
    assert backend.weight_digest() == resumed.weight_digest()


def test_invariant_12_a_bad_second_mini_batch_names_the_update_and_is_not_made(group: LearnerGroup) -> None:
    backend = make_backend(group, AlgorithmConfig(proximal="rollout"))
    good, bad = cut(0, 2)
    bad.shares[0][0].advantages[0] = float("nan")
    with pytest.raises(NonFiniteError, match=r"learner step 1, update 2: .*; this update was not applied\."):
        backend.step_batch([good, bad])
    assert backend.steps_done == 0
    after_bad = backend.weight_digest()
    other = make_backend(group, AlgorithmConfig(proximal="rollout"))
    other.step_batch([good])
    assert other.weight_digest() == after_bad
