"""Adapters are trained and nothing else: on one rank and two, over a resume, and merged as peft merges them."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from peft import PeftModel, get_peft_model, set_peft_model_state_dict
from support.engines.family_models import family_model
from support.learner.probe_learner import GROUP_SIZE, GROUPS, VOCAB
from support.learner.rank_processes import run_ranks
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Qwen3Config, Qwen3ForCausalLM

from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.learner import OptimizerConfig
from streamrl.errors import ConfigError, DataError
from streamrl.learner.batch.packing import pack
from streamrl.learner.batch.rows import count_targets
from streamrl.learner.checkpoint.digest import weight_digest
from streamrl.learner.fsdp import FsdpBackend
from streamrl.learner.model.adapters import AdapterPolicy, AdapterSettings, linear_layers
from streamrl.learner.model.sharding import ShardedPolicy
from streamrl.learner.objectives import nll_loss, policy_loss
from streamrl.learner.parallel.process_group import LearnerGroup, open_group
from streamrl.models.adapters.names import PEFT_PREFIX
from streamrl.models.adapters.peft_folder import peft_config
from streamrl.types import RolloutRows
from streamrl.weights.tensors import weights_digest

PROGRAM = Path(__file__).with_name("adapter_rank.py")
OPTIMIZER = OptimizerConfig(lr=2e-2, warmup_steps=1, weight_decay=0.01)
SETTINGS = AdapterSettings(4, 6.0, ("q_proj", "o_proj", "up_proj"), seed=7)
COMPARED = ("loss/policy", "loss/entropy", "grad/norm", "ratio/mean", "mismatch/kl", "mismatch/logprob_abs_max")


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LearnerGroup]:
    group = open_group(0, 1, tmp_path_factory.mktemp("group") / "store", device=torch.device("cpu"))
    yield group
    group.close()


def make_model(seed: int = 5) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    sizes = {"hidden_size": 24, "intermediate_size": 35, "num_hidden_layers": 2, "head_dim": 8, "vocab_size": VOCAB}
    heads = {"num_attention_heads": 3, "num_key_value_heads": 1}
    return Qwen3ForCausalLM(Qwen3Config(**sizes, **heads, max_position_embeddings=64, tie_word_embeddings=True))


def make_rows(step: int = 0) -> RolloutRows:
    random = np.random.default_rng([4, step])
    count = GROUPS * GROUP_SIZE
    lengths = random.integers(3, 12, count)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    origin = np.ones(offsets[-1], np.uint8)
    origin[offsets[:-1]] = 0
    return RolloutRows(
        offsets=offsets,
        token_ids=random.integers(0, VOCAB, offsets[-1]).astype(np.int32),
        token_origin=origin,
        rollout_logprobs=random.normal(-3, 0.3, offsets[-1]).astype(np.float32),
        token_steps=np.full(offsets[-1], step),
        group=np.arange(count) // GROUP_SIZE,
        sample_index=np.arange(count) % GROUP_SIZE,
        rewards=np.zeros(count),
        valid=np.ones(count, bool),
    )


def make_policy(
    group: LearnerGroup, settings: AdapterSettings = SETTINGS, *, seed: int = 5, dtype: torch.dtype = torch.float32
) -> AdapterPolicy:
    return AdapterPolicy(make_model(seed).to(dtype), group, dtype, settings)


def make_backend(policy: ShardedPolicy, *, supervised: bool = False) -> FsdpBackend:
    objective = nll_loss if supervised else partial(policy_loss, algorithm=AlgorithmConfig(), temperature=1.0)
    return FsdpBackend(policy, objective, OPTIMIZER, total_steps=60)


def step(backend: FsdpBackend, rows: RolloutRows | None = None) -> dict[str, float]:
    rows = make_rows(backend.steps_done) if rows is None else rows
    advantages = np.random.default_rng(backend.steps_done).normal(size=rows.num_rows)
    return backend.step(pack(rows, advantages, 64), count_targets(rows))


def test_training_lowers_the_loss_and_leaves_every_weight_of_the_model_as_it_was(group: LearnerGroup) -> None:
    before = {name: param.detach().clone() for name, param in make_model().named_parameters()}
    policy = make_policy(group)
    backend, rows = make_backend(policy, supervised=True), make_rows()
    losses = [step(backend, rows)["loss/policy"] for _ in range(40)]
    # Random tokens: a tied head that stays as it is can do no more.
    assert losses[-1] < losses[0] - 0.2
    after = dict(policy.gather_base())
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], weight) for name, weight in before.items())
    assert weights_digest(after.items()) == policy.base_digest


def test_only_adapters_have_gradients_moments_and_a_place_in_the_checkpoint(group: LearnerGroup) -> None:
    policy = make_policy(group)
    backend = make_backend(policy)
    seen: list[set[str]] = []
    clip = backend._clip
    backend._clip = lambda: (  # between the backward and the update
        seen.append({name for name, param in policy.module.named_parameters() if param.grad is not None}) or clip()
    )
    step(backend)
    assert seen
    assert all(".lora_" in name for name in seen[0])
    layers = [f"model.layers.{i}.{part}" for i in (0, 1) for part in ("self_attn.q_proj", "self_attn.o_proj")]
    layers += [f"model.layers.{i}.mlp.up_proj" for i in (0, 1)]
    names = {f"{layer}.lora_{side}.weight" for layer in layers for side in "AB"}
    assert policy.shards.keys() == names
    assert len(seen[0]) == len(names)
    kinds = ("model", "exp_avg", "exp_avg_sq")
    assert {name for name, _ in backend.state_tensors()} == {f"{kind}/{name}" for kind in kinds for name in names}
    assert policy.num_parameters == sum(shard.numel() for shard in policy.shards.values())


def test_before_the_first_step_the_model_is_the_model_to_the_bit(group: LearnerGroup) -> None:
    policy, plain = make_policy(group), dict(make_model().named_parameters())
    merged = dict(policy.iter_hf_weights())
    assert list(merged) == list(plain)
    assert all(torch.equal(merged[name], weight) for name, weight in plain.items())
    rows = make_rows()
    packs = pack(rows, np.ones(rows.num_rows), 64)
    full = make_backend(ShardedPolicy(make_model(), group, torch.float32))
    for mine, theirs in zip(make_backend(policy).logprobs(packs), full.logprobs(packs), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-6)


def trained(group: LearnerGroup, steps: int = 6, **kind: Any) -> AdapterPolicy:
    policy = make_policy(group, **kind)
    backend = make_backend(policy)
    for _ in range(steps):
        step(backend)
    return policy


def merged_by_peft(policy: AdapterPolicy) -> dict[str, torch.Tensor]:
    """The library's own merge of the same adapters into the same model."""
    settings = policy.settings
    model = get_peft_model(make_model(), peft_config(settings.rank, settings.alpha, settings.targets))
    loaded = set_peft_model_state_dict(model, {PEFT_PREFIX + name: whole for name, whole in policy.iter_version()})
    assert loaded.unexpected_keys == []
    assert isinstance(model, PeftModel)
    return dict(model.merge_and_unload().named_parameters())


# peft 0.21 reads an attribute that transformers 5.23 calls by another name.
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")
def test_the_merged_weights_are_those_of_pefts_own_merge_to_the_bit(group: LearnerGroup) -> None:
    policy = trained(group)
    mine, theirs, plain = dict(policy.iter_hf_weights()), merged_by_peft(policy), dict(make_model().named_parameters())
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    moved = {name for name in mine if not torch.equal(mine[name], plain[name])}
    assert moved == {name.replace(".lora_A", "") for name in policy.shards if ".lora_A" in name}


class Elsewhere(AdapterPolicy):
    """What it gathers lies on a GPU, of which there is none here: its tensors have a place, and no numbers."""

    def iter_version(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, shard in self.shards.items():
            yield name, torch.empty(shard.shape, dtype=torch.float32, device="cuda")

    def gather_base(self, beside: bool = True) -> Iterator[tuple[str, torch.Tensor]]:
        for name, weight in make_model().named_parameters():
            yield name, torch.empty(weight.shape, dtype=self.dtype, device="cuda")


class Products(TorchDispatchMode):
    """Where matrices are multiplied."""

    def __init__(self) -> None:
        super().__init__()
        self.places: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten.mm.default:
            self.places.append(args[0].device.type)
        return func(*args, **(kwargs or {}))


def test_adapters_of_a_gpu_are_merged_where_replicas_and_exports_merge_them(group: LearnerGroup) -> None:
    """On the CPU, since a GPU adds up in another order, and the bytes are to be the same."""
    policy = Elsewhere(make_model(), group, torch.float32, SETTINGS)
    with FakeTensorMode(), Products() as products:
        merged = dict(policy.iter_hf_weights())
    assert {weight.device.type for weight in merged.values()} == {"cpu"}
    assert products.places == ["cpu"] * sum(".lora_A" in name for name in policy.shards)


def test_log_probs_of_the_merged_model_are_those_that_are_trained(group: LearnerGroup) -> None:
    policy = trained(group)
    served = make_model()
    served.load_state_dict(dict(policy.iter_hf_weights()), strict=False)
    rows = make_rows(9)
    packs = pack(rows, np.ones(rows.num_rows), 64)
    whole = make_backend(ShardedPolicy(served, group, torch.float32)).logprobs(packs)
    for mine, theirs in zip(make_backend(policy).logprobs(packs), whole, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-5)


def test_a_bfloat16_model_has_adapters_in_float32_and_is_merged_in_its_own_format(group: LearnerGroup) -> None:
    policy = trained(group, dtype=torch.bfloat16)
    gathered = dict(policy.gather(policy.snapshot()))
    assert {tensor.dtype for tensor in gathered.values()} == {torch.float32}
    assert {tensor.dtype for _, tensor in policy.iter_hf_weights()} == {torch.bfloat16}
    assert weights_digest(policy.gather_base()) == policy.base_digest
    # Not all of their bits would have a place in bfloat16.
    assert any(not torch.equal(tensor, tensor.bfloat16().float()) for tensor in gathered.values())


@pytest.mark.parametrize("before", [0, 5])
def test_a_resumed_backend_goes_on_bit_equal(group: LearnerGroup, before: int) -> None:
    backend, resumed = make_backend(make_policy(group)), make_backend(make_policy(group))
    for _ in range(before):
        step(backend)
    step(resumed)
    tensors = {name: tensor.clone() for name, tensor in backend.state_tensors()}
    resumed.load_state(tensors.__getitem__, backend.state_extra())
    for _ in range(3):
        a, b = step(backend), step(resumed)
        assert (a["loss/policy"], a["grad/norm"]) == (b["loss/policy"], b["grad/norm"])
    assert weight_digest(backend.state_tensors()) == weight_digest(resumed.state_tensors())


def test_a_state_of_another_base_rank_or_kind_is_refused_before_anything_changes(group: LearnerGroup) -> None:
    backend = make_backend(make_policy(group))
    before = weight_digest(backend.state_tensors())
    full = make_backend(ShardedPolicy(make_model(), group, torch.float32))
    others = [
        make_backend(make_policy(group, seed=6)),
        make_backend(make_policy(group, SETTINGS._replace(alpha=7.0))),
        full,
    ]
    for other in others:
        tensors = dict(other.state_tensors())
        with pytest.raises(DataError, match=r"this learner trains|has no tensor"):
            backend.load_state(tensors.__getitem__, other.state_extra())
    with pytest.raises(DataError, match="this learner trains all weights"):
        full.load_state(dict(backend.state_tensors()).__getitem__, backend.state_extra())
    assert weight_digest(backend.state_tensors()) == before


def test_adapters_begin_as_a_function_of_the_seed_and_leave_the_callers_random_state(group: LearnerGroup) -> None:
    model = make_model()
    generator = torch.get_rng_state()
    first = AdapterPolicy(model, group, torch.float32, SETTINGS)
    assert torch.equal(torch.get_rng_state(), generator)
    torch.rand(3)
    again, other = make_policy(group), make_policy(group, SETTINGS._replace(seed=8))
    digests = [weights_digest(policy.iter_version()) for policy in (first, again, other)]
    assert digests[0] == digests[1] != digests[2]
    assert all(not shard.any() for name, shard in first.shards.items() if ".lora_B" in name)


def test_a_target_that_the_model_does_not_have_is_named_with_those_that_there_are(group: LearnerGroup) -> None:
    with pytest.raises(
        ConfigError, match=r"learner.lora.targets: qkv is no linear layer .* q_proj, k_proj, .*down_proj"
    ):
        make_policy(group, SETTINGS._replace(targets=("q_proj", "qkv")))


# ---- two ranks


class Runs(NamedTuple):
    two: list[dict[str, Any]]
    one: dict[str, Any]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("adapter-ranks")
    return Runs(run_ranks(PROGRAM, folder, 2), run_ranks(PROGRAM, folder, 1)[0])


@pytest.mark.long
def test_on_two_shares_one_rank_and_two_make_equal_adapters_and_equal_models(runs: Runs) -> None:
    for key in ("shared_digest", "gathered_digest", "merged_digest", "state_digest"):
        assert len({rank[key] for rank in (*runs.two, runs.one)}) == 1, key
    assert runs.one["shared_digest"] == runs.one["gathered_digest"]
    norms = [[metrics["grad/norm"] for metrics in rank["shared_metrics"]] for rank in (*runs.two, runs.one)]
    assert norms[0] == norms[1] == norms[2]


@pytest.mark.long
def test_adapters_of_which_a_rank_has_no_row_are_trained_as_on_one(runs: Runs) -> None:
    for mine, theirs in zip(runs.two[0]["odd_metrics"], runs.one["odd_metrics"], strict=True):
        for key in COMPARED:
            assert mine[key] == pytest.approx(theirs[key], rel=1e-5, abs=1e-5), key


@pytest.mark.long
def test_the_base_is_gathered_whole_and_unchanged_from_two_ranks(runs: Runs) -> None:
    for key in ("base", "odd_base"):
        assert len({digest for rank in (*runs.two, runs.one) for digest in rank[key]}) == 1


@pytest.mark.parametrize("kind", ["phi3", "gemma3_text", "starcoder2", "qwen3_moe"])
def test_a_family_of_other_layers_has_adapters_on_all_its_linear_layers(group: LearnerGroup, kind: str) -> None:
    model = family_model(kind)
    targets = tuple(linear_layers(model))
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    policy = AdapterPolicy(model, group, torch.float32, AdapterSettings(4, 8.0, targets, seed=7))
    adapted = {name.split(".")[-3] for name in policy.shards}
    assert adapted == set(targets)
    merged = dict(policy.iter_hf_weights())
    assert merged.keys() == before.keys()
    assert all(torch.equal(merged[name], weight) for name, weight in before.items())  # they begin as nothing
    backend = make_backend(policy)
    step(backend)
    assert any(not torch.equal(weight, before[name]) for name, weight in policy.iter_hf_weights())
