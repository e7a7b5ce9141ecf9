"""The FSDP2 backend on one rank: bit-equal to a plain loop, safe against NaN, exact after a resume."""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.learner import OptimizerConfig
from streamrl.errors import ComponentError, ConfigError, DataError, NonFiniteError
from streamrl.learner.batch.packing import PackedBatch, pack
from streamrl.learner.batch.rows import count_targets
from streamrl.learner.checkpoint.digest import weight_digest
from streamrl.learner.fsdp import FsdpBackend, build
from streamrl.learner.model.policy import PolicyModel
from streamrl.learner.model.sharding import ShardedPolicy
from streamrl.learner.objectives import Objective, Sums, policy_loss
from streamrl.learner.optim.optimizer import clip_gradients, make_optimizer
from streamrl.learner.optim.schedule import learning_rate
from streamrl.learner.parallel.process_group import LearnerGroup, open_group
from streamrl.types import RolloutRows

OPTIMIZER = OptimizerConfig(lr=3e-3, warmup_steps=3, weight_decay=0.01, max_grad_norm=0.5)
ALGORITHM = AlgorithmConfig()
TOTAL_STEPS = 40


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LearnerGroup]:
    store = tmp_path_factory.mktemp("group") / "store"
    group = open_group(0, 1, store, device=torch.device("cpu"))
    yield group
    group.close()


def make_model(*, vocab_size: int = 19) -> Qwen3ForCausalLM:
    torch.manual_seed(5)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=vocab_size,
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


def make_batch(step: int, *, rows: int = 12) -> tuple[RolloutRows, np.ndarray]:
    rng = np.random.default_rng([9, step])
    lengths = rng.integers(2, 12, rows)
    count = int(lengths.sum())
    origin = np.ones(count, np.uint8)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    origin[offsets[:-1]] = 0
    batch = RolloutRows(
        offsets=offsets,
        token_ids=rng.integers(0, 19, count).astype(np.int32),
        token_origin=origin,
        rollout_logprobs=rng.normal(-3, 0.3, count).astype(np.float32),
        token_steps=np.full(count, step),
        group=np.arange(rows) // 4,
        sample_index=np.arange(rows) % 4,
        rewards=np.zeros(rows),
        valid=np.ones(rows, bool),
    )
    return batch, rng.normal(0, 1, rows)


def make_backend(group: LearnerGroup, *, dtype: torch.dtype = torch.float32) -> FsdpBackend:
    return build(
        make_model(),
        optimizer=OPTIMIZER,
        algorithm=ALGORITHM,
        total_steps=TOTAL_STEPS,
        temperature=0.9,
        group=group,
        dtype=dtype,
    )


def step_once(backend: FsdpBackend, *, budget: int = 32) -> dict[str, float]:
    rows, advantages = make_batch(backend.steps_done)
    return backend.step(pack(rows, advantages, budget), count_targets(rows))


def test_one_rank_is_bit_equal_to_a_plain_loop_over_twenty_steps(group: LearnerGroup) -> None:
    backend, policy = make_backend(group), PolicyModel(make_model())
    params = list(policy.parameters())
    optimizer = make_optimizer(params, OPTIMIZER)
    for step in range(20):
        metrics = step_once(backend)
        rows, advantages = make_batch(step)
        sums = Sums.zero(torch.device("cpu"))
        for packed in pack(rows, advantages, 32):
            loss, more = policy_loss(policy, packed, count_targets(rows), ALGORITHM, 0.9)
            loss.backward()
            sums = sums.plus(more)
        norm = clip_gradients(params, OPTIMIZER.max_grad_norm)
        optimizer.set_learning_rate(learning_rate(step, OPTIMIZER, TOTAL_STEPS))
        optimizer.step()
        optimizer.zero_grad()
        assert metrics["loss/policy"] == sums.metrics()["loss/policy"]
        assert metrics["grad/norm"] == norm
        plain = ((name.removeprefix("model."), p) for name, p in policy.named_parameters())
        assert backend.weight_digest() == weight_digest(plain)


def test_an_optimizer_whose_package_is_missing_says_which_extra_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "streamrl.learner.optim.adamw_8bit", raising=False)
    monkeypatch.setitem(sys.modules, "torchao.optim", None)
    with pytest.raises(ConfigError, match=r"adamw_8bit.*torchao is not installed; pip install .*the extra low-bit"):
        make_optimizer(make_model().parameters(), OptimizerConfig(kind="adamw_8bit"))


def test_a_step_reports_the_metrics_of_the_run_folder(group: LearnerGroup) -> None:
    metrics = step_once(make_backend(group))
    assert set(metrics) == {
        "loss/policy",
        "loss/entropy",
        "grad/norm",
        "ratio/mean",
        "ratio/clip_fraction",
        "mismatch/kl",
        "mismatch/logprob_abs_max",
        "correction/weight_mean",
        "correction/truncated",
        "correction/rejected",
        "correction/effective_share",
        "correction/lag_0/tokens",
        "correction/lag_0/weight_mean",
        "correction/lag_0/truncated",
        "correction/lag_0/rejected",
        "learner/lr",
        "time/forward_backward",
        "time/optimizer",
    }
    assert metrics["learner/lr"] == pytest.approx(1e-3)


def test_loss_and_norm_do_not_depend_on_micro_batches(group: LearnerGroup) -> None:
    whole, cut = (step_once(make_backend(group), budget=budget) for budget in (4096, 16))
    for key in ("loss/policy", "grad/norm", "ratio/mean", "mismatch/kl"):
        assert cut[key] == pytest.approx(whole[key], rel=1e-5, abs=1e-6)


def test_a_rank_without_rows_takes_a_step_of_zero_gradient(group: LearnerGroup) -> None:
    rows, _ = make_batch(0)
    metrics = make_backend(group).step([], count_targets(rows))
    assert (metrics["loss/policy"], metrics["grad/norm"]) == (0.0, 0.0)


def nan_loss(policy: PolicyModel, packed: PackedBatch, total: tuple[int, int]) -> tuple[torch.Tensor, Sums]:
    loss, sums = policy_loss(policy, packed, total, ALGORITHM, 0.9)
    return loss * float("nan"), Sums(sums.added * float("nan"), sums.greatest)


def nan_gradient(policy: PolicyModel, packed: PackedBatch, total: tuple[int, int]) -> tuple[torch.Tensor, Sums]:
    """A finite loss whose derivative is not: sqrt at 0."""
    loss, sums = policy_loss(policy, packed, total, ALGORITHM, 0.9)
    return loss + (loss * 0.0).sqrt(), sums


def infinite_mismatch(policy: PolicyModel, packed: PackedBatch, total: tuple[int, int]) -> tuple[torch.Tensor, Sums]:
    loss, sums = policy_loss(policy, packed, total, ALGORITHM, 0.9)
    return loss, Sums(sums.added, sums.greatest + float("inf"))


@pytest.mark.parametrize(
    ("broken", "named"),
    [(nan_loss, "loss/policy = nan"), (nan_gradient, "grad/norm"), (infinite_mismatch, "mismatch/logprob_abs_max")],
)
def test_invariant_12_nothing_changes_when_a_number_is_not_finite(
    broken: Objective, named: str, group: LearnerGroup
) -> None:
    backend, untouched = make_backend(group), make_backend(group)
    for one in (backend, untouched):
        step_once(one)
    digest = backend.weight_digest()
    sound, backend._objective = backend._objective, broken
    with pytest.raises(NonFiniteError, match=named):
        step_once(backend)
    assert backend.weight_digest() == digest
    assert backend.steps_done == 1
    backend._objective = sound
    step_once(backend)
    step_once(untouched)
    assert backend.weight_digest() == untouched.weight_digest()


def test_invariant_12_a_weight_that_is_not_finite_is_never_given_out(group: LearnerGroup) -> None:
    backend = make_backend(group)
    with torch.no_grad():
        backend.policy.shards["model.layers.1.mlp.up_proj.weight"][3, 2] = float("inf")
    given = []
    with pytest.raises(NonFiniteError, match=r"layers\.1\.mlp\.up_proj\.weight: 1 of"):
        given += [name for name, _ in backend.iter_hf_weights()]
    with pytest.raises(NonFiniteError):
        backend.weight_digest()


def test_weights_go_out_under_hugging_face_names_without_the_tied_head(group: LearnerGroup) -> None:
    backend, model = make_backend(group), make_model()
    weights = dict(backend.iter_hf_weights())
    assert list(weights) == [name for name, _ in model.named_parameters()]
    assert "lm_head.weight" not in weights
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])


def test_bfloat16_gives_out_the_weights_it_computes_with_and_keeps_float32_masters(group: LearnerGroup) -> None:
    backend = make_backend(group, dtype=torch.bfloat16)
    losses = [step_once(backend)["loss/policy"] for _ in range(3)]
    assert np.isfinite(losses).all()
    given = dict(backend.iter_hf_weights())
    for name, shard in backend.policy.shards.items():
        assert shard.dtype == torch.float32
        assert torch.equal(given[name], shard.detach().to(torch.bfloat16))
    rows, advantages = make_batch(7)
    packs = pack(rows, advantages, 32)
    plain = make_model()
    plain.load_state_dict(given, strict=False)
    plain = PolicyModel(plain.to(torch.bfloat16))
    for got, packed in zip(backend.logprobs(packs), packs, strict=True):
        torch.testing.assert_close(got, plain(packed, 0.9)[0].detach(), rtol=0.02, atol=0.02)


def test_log_probs_are_those_of_the_weights_as_they_are(group: LearnerGroup) -> None:
    backend, policy = make_backend(group), PolicyModel(make_model())
    rows, advantages = make_batch(0)
    packs = pack(rows, advantages, 32)
    for got, packed in zip(backend.logprobs(packs), packs, strict=True):
        assert not got.requires_grad
        assert torch.equal(got, policy(packed, 0.9)[0].detach())


def test_weights_that_are_loaded_after_a_look_are_those_that_the_next_look_has(group: LearnerGroup) -> None:
    backend, other = make_backend(group), make_backend(group)
    step_once(other)
    packs = pack(*make_batch(0), 32)
    before = backend.logprobs(packs)
    backend.load_state(*saved_state(other))
    after = backend.logprobs(packs)
    assert not any(torch.equal(one, two) for one, two in zip(before, after, strict=True))
    assert all(torch.equal(one, two) for one, two in zip(after, other.logprobs(packs), strict=True))


def saved_state(backend: FsdpBackend) -> tuple[Callable[[str], torch.Tensor], dict[str, object]]:
    tensors = {name: tensor.clone() for name, tensor in backend.state_tensors()}
    return tensors.__getitem__, backend.state_extra()


@pytest.mark.parametrize("before", [0, 5])
def test_a_resumed_backend_goes_on_bit_equal(before: int, group: LearnerGroup) -> None:
    backend, resumed = make_backend(group), make_backend(group)
    for _ in range(before):
        step_once(backend)
    for _ in range(2):
        step_once(resumed)
    torch.rand(3)
    generator = torch.get_rng_state()
    state = saved_state(backend)
    torch.rand(7)
    resumed.load_state(*state)
    assert torch.equal(torch.get_rng_state(), generator)
    for _ in range(4):
        a, b = step_once(backend), step_once(resumed)
        assert (a["loss/policy"], a["grad/norm"], a["learner/lr"]) == (
            b["loss/policy"],
            b["grad/norm"],
            b["learner/lr"],
        )
    assert weight_digest(backend.state_tensors()) == weight_digest(resumed.state_tensors())


def test_the_state_of_another_model_is_refused_before_anything_changes(group: LearnerGroup) -> None:
    backend = make_backend(group)
    digest = backend.weight_digest()
    other = ShardedPolicy(make_model(vocab_size=21), group, torch.float32)
    objective = partial(policy_loss, algorithm=ALGORITHM, temperature=1.0)
    with pytest.raises(DataError, match=r"embed_tokens.*\(21, 24\), expected \(19, 24\)"):
        backend.load_state(*saved_state(FsdpBackend(other, objective, OPTIMIZER, 1)))
    with pytest.raises(DataError, match="steps_done"):
        backend.load_state(lambda _name: torch.zeros(0), {})
    assert backend.weight_digest() == digest


def test_a_second_group_in_one_process_is_refused(group: LearnerGroup, tmp_path: Path) -> None:
    with pytest.raises(ComponentError, match="already"):
        open_group(0, 1, tmp_path / "store", device=group.device)
