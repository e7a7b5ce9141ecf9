"""Terms of the loss beside the policy's: entropy with its gradient, and a policy that stands still."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.learner import OptimizerConfig
from streamrl.learner.batch.packing import PackedBatch, pack
from streamrl.learner.batch.rows import count_targets
from streamrl.learner.fsdp import build
from streamrl.learner.model.logprobs import token_logprobs
from streamrl.learner.model.policy import PolicyModel
from streamrl.learner.objectives import policy_loss
from streamrl.learner.parallel.process_group import LearnerGroup, open_group
from streamrl.learner.references.frozen import FrozenPolicy
from streamrl.types import RolloutRows


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LearnerGroup]:
    group = open_group(0, 1, tmp_path_factory.mktemp("group") / "store", device=torch.device("cpu"))
    yield group
    group.close()


def make_model(seed: int = 5) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
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


def make_batch(*, rows: int = 8) -> tuple[RolloutRows, np.ndarray]:
    rng = np.random.default_rng(9)
    lengths = rng.integers(2, 12, rows)
    count = int(lengths.sum())
    offsets, origin = np.concatenate([[0], np.cumsum(lengths)]), np.ones(count, np.uint8)
    origin[offsets[:-1]] = 0
    batch = RolloutRows(
        offsets=offsets,
        token_ids=rng.integers(0, 19, count).astype(np.int32),
        token_origin=origin,
        rollout_logprobs=rng.normal(-3, 0.3, count).astype(np.float32),
        token_steps=np.zeros(count, np.int64),
        group=np.arange(rows) // 4,
        sample_index=np.arange(rows) % 4,
        rewards=np.zeros(rows),
        valid=np.ones(rows, bool),
    )
    return batch, rng.normal(0, 1, rows)


@pytest.mark.parametrize("logits_at_once", [1, 33, 1024])
def test_entropy_and_its_gradient_are_those_of_a_loop_in_double_precision(logits_at_once: int) -> None:
    print("seed 4")
    generator = torch.Generator().manual_seed(4)
    hidden, weight = (torch.randn(n, 6, generator=generator, requires_grad=True) for n in (11, 17))
    targets = torch.randint(0, 17, (11,), generator=generator)
    logprobs, entropy = token_logprobs(hidden, weight, None, targets, 0.8, logits_at_once, entropy_gradient=True)
    (entropy.sum() + 0.5 * logprobs.sum()).backward()
    exact_hidden, exact_weight = (t.detach().double().requires_grad_() for t in (hidden, weight))
    total = torch.zeros((), dtype=torch.float64)
    for k in range(11):
        distribution = (exact_weight @ exact_hidden[k] / 0.8).log_softmax(0)
        expected = -(distribution.exp() * distribution).sum()
        assert entropy[k].item() == pytest.approx(expected.item(), rel=1e-5)
        total = total + expected + 0.5 * distribution[targets[k]]
    total.backward()
    torch.testing.assert_close(hidden.grad.double(), exact_hidden.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(weight.grad.double(), exact_weight.grad, rtol=1e-4, atol=1e-5)


def test_entropy_has_no_gradient_unless_it_is_asked_for() -> None:
    hidden, weight = torch.randn(4, 6, requires_grad=True), torch.randn(7, 6)
    for asked in (False, True):
        _, entropy = token_logprobs(hidden, weight, None, torch.zeros(4).long(), 1.0, 9, entropy_gradient=asked)
        assert entropy.requires_grad == asked
    with torch.no_grad():
        assert not token_logprobs(hidden, weight, None, torch.zeros(4).long(), 1.0, 9, True)[1].requires_grad


def packs_of(budget: int) -> tuple[list[PackedBatch], RolloutRows]:
    rows, advantages = make_batch()
    return pack(rows, advantages, budget), rows


def test_a_bonus_for_entropy_raises_it(group: LearnerGroup) -> None:
    packs, rows = packs_of(32)
    seen = {}
    for coefficient in (0.0, 5.0):
        backend = build(
            make_model(),
            optimizer=OptimizerConfig(lr=1e-3, warmup_steps=0),
            algorithm=AlgorithmConfig(entropy_coef=coefficient),
            total_steps=9,
            temperature=1.0,
            group=group,
        )
        seen[coefficient] = [backend.step(packs, count_targets(rows))["loss/entropy"] for _ in range(4)]
    assert seen[0.0][0] == seen[5.0][0]
    assert seen[5.0][-1] > seen[5.0][0]
    assert seen[5.0][-1] > seen[0.0][-1]


def test_a_policy_that_is_held_is_bit_equal_to_a_plain_loop_and_its_reference_stands_still(group: LearnerGroup) -> None:
    algorithm = AlgorithmConfig(kl_coef=0.3, kl_estimator="k3", entropy_coef=0.01)
    reference = FrozenPolicy(lambda: make_model(6), group, torch.float32)
    backend = build(
        make_model(),
        optimizer=OptimizerConfig(lr=1e-3, warmup_steps=0),
        algorithm=algorithm,
        total_steps=9,
        temperature=0.9,
        group=group,
        reference=reference,
    )
    plain, other = PolicyModel(make_model()), PolicyModel(make_model(6))
    packs, rows = packs_of(32)
    expected = 0.0
    for packed in packs:
        loss, _ = policy_loss(plain, packed, count_targets(rows), algorithm, 0.9, other)
        expected += loss.double().item()
    metrics = backend.step(packs, count_targets(rows))
    assert metrics["loss/policy"] == expected
    assert metrics["loss/kl"] > 0.0
    for _ in range(2):
        backend.step(packs, count_targets(rows))
    for packed in packs:
        assert torch.equal(reference(packed, 0.9)[0], other(packed, 0.9)[0].detach())
        assert not reference(packed, 0.9)[0].requires_grad


def test_a_reference_reads_its_weights_when_it_is_first_called(group: LearnerGroup) -> None:
    read = []

    def load() -> Qwen3ForCausalLM:
        read.append(None)
        return make_model()

    reference = FrozenPolicy(load, group, torch.float32)
    assert not read
    packs, _ = packs_of(4096)
    for _ in range(2):
        reference(packs[0], 1.0)
    assert len(read) == 1
