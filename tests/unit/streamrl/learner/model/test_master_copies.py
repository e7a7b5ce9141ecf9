"""Masters in float32 beside copies in bfloat16, where one rank has all of a model."""

from collections.abc import Iterator

import pytest
import torch
from support.learner.fused import packed_rows, small_model
from torch import nn

from streamrl.config.schema.learner import ExecutionConfig
from streamrl.errors import ConfigError
from streamrl.learner.model import sharding
from streamrl.learner.model.master_copies import MasterCopies
from streamrl.learner.model.sharding import ShardedPolicy, computes_alone
from streamrl.learner.parallel.process_group import LearnerGroup, open_group


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LearnerGroup]:
    found = open_group(0, 1, tmp_path_factory.mktemp("group") / "meeting", device=torch.device("cpu"))
    yield found
    found.close()


def test_a_forward_computes_with_the_masters_as_they_are() -> None:
    module = nn.Linear(3, 2)
    copies = MasterCopies(module, torch.bfloat16)
    with torch.no_grad():
        copies.masters["weight"].fill_(1.0 / 3)
        copies.masters["bias"].zero_()
    out = module(torch.ones(1, 3, dtype=torch.bfloat16))
    assert torch.equal(out, torch.full((1, 2), 1.0 / 3, dtype=torch.bfloat16).mul(3).to(torch.bfloat16))
    assert copies.masters["weight"].dtype is torch.float32


def test_gradients_of_several_backwards_add_up_in_float32() -> None:
    module = nn.Linear(1, 1, bias=False)
    copies = MasterCopies(module, torch.bfloat16)
    for value in (256.0, 1.0, 1.0):  # in bfloat16 256 + 1 is 256
        module(torch.full((1, 1), value, dtype=torch.bfloat16)).sum().backward()
        copies.add_gradients()
    assert [gradient.item() for gradient in copies.gradients()] == [258.0]
    copies.clear()
    assert copies.gradients() == [None]
    module(torch.ones(1, 1, dtype=torch.bfloat16)).sum().backward()
    copies.add_gradients()
    assert [gradient.item() for gradient in copies.gradients()] == [1.0]


def test_a_graph_stays_usable_when_another_forward_comes_first() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    copies = MasterCopies(module, torch.bfloat16)
    first, second = (module(torch.ones(1, 2, dtype=torch.bfloat16)).sum() for _ in range(2))
    (first + second).backward()
    copies.add_gradients()
    assert all(gradient is not None for gradient in copies.gradients())


def test_what_is_not_trained_has_no_master() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    module[0].requires_grad_(False)
    copies = MasterCopies(module, torch.bfloat16)
    assert list(copies.masters) == ["1.weight", "1.bias"]
    assert module[0].weight.dtype is torch.bfloat16


def learned(group: LearnerGroup, packs: list) -> tuple[list[float], dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    policy = ShardedPolicy(small_model("qwen3"), group, torch.bfloat16)
    losses = []
    for number, pack in enumerate(packs, start=1):
        policy.set_gradient_sync(number == len(packs))
        logprobs, _ = policy.module(pack, 0.8)
        loss = (logprobs * pack.advantages).sum()
        policy.backward(loss)
        losses.append(loss.item())
    policy.collect_gradients()
    return losses, {name: shard.grad for name, shard in policy.shards.items()}, dict(policy.iter_hf_weights())


def test_one_rank_alone_computes_what_it_does_under_fsdp(group: LearnerGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    packs, found = packed_rows(100, split=True), []
    assert len(packs) > 1
    for alone in (True, False):
        monkeypatch.setattr(sharding, "computes_alone", lambda *_, alone=alone: alone)
        found.append(learned(group, packs))
    (losses, gradients, weights), (others, other_gradients, other_weights) = found
    assert losses == others
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, other_gradients[name], rtol=1e-6, atol=1e-6)
        assert torch.equal(weights[name], other_weights[name])


def test_alone_weights_are_loaded_and_read_back(group: LearnerGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharding, "computes_alone", lambda *_: True)
    policy, other = (ShardedPolicy(small_model("qwen3", vocab_size=67), group, torch.bfloat16) for _ in range(2))
    fresh = {name: torch.randn_like(whole) for name, whole in other.iter_weights()}
    policy.load_weights(fresh.__getitem__)
    for name, whole in policy.iter_weights():
        assert torch.equal(whole, fresh[name])
    with torch.no_grad():
        before = policy.module(packed_rows(), 1.0)[0]
        other.load_weights(fresh.__getitem__)
        assert torch.equal(before, other.module(packed_rows(), 1.0)[0])


def test_a_parameter_without_a_gradient_is_named(group: LearnerGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharding, "computes_alone", lambda *_: True)
    policy = ShardedPolicy(small_model("qwen3"), group, torch.bfloat16)
    with pytest.raises(ConfigError, match=r"parameter model\.embed_tokens\.weight got no gradient"):
        policy.collect_gradients()


def test_only_one_gpu_in_a_lower_precision_is_alone(group: LearnerGroup) -> None:
    assert not computes_alone(group, torch.bfloat16, ExecutionConfig())
    on_gpu = LearnerGroup(0, 1, torch.device("cuda"), group.mesh, group.beside)
    assert computes_alone(on_gpu, torch.bfloat16, ExecutionConfig())
    assert not computes_alone(on_gpu, torch.float32, ExecutionConfig())
    assert not computes_alone(on_gpu, torch.bfloat16, ExecutionConfig(offload=True))
    assert not computes_alone(
        LearnerGroup(0, 2, torch.device("cuda"), group.mesh, group.beside), torch.bfloat16, ExecutionConfig()
    )
