"""Every way to compute a layer gives the loss and the gradients of the plain one, in float32 on a CPU."""

from pathlib import Path

import pytest
import torch
from support.learner.fused import packed_rows, small_model

from streamrl.algorithms.aggregation import Denominators
from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.learner import ExecutionConfig, OptimizerConfig
from streamrl.learner.fsdp import on_policy
from streamrl.learner.model.policy import PolicyModel
from streamrl.learner.model.sharding import ShardedPolicy
from streamrl.learner.model.value_model import HEAD, ShardedCritic, decoder_of
from streamrl.learner.parallel.process_group import LearnerGroup, open_group

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    # What torch.compile imports warns of what torch itself is going to remove.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
]
SIZES = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32}
WAYS = {
    "default": ExecutionConfig(),
    "by torch": ExecutionConfig(kernels="torch"),
    "computed again": ExecutionConfig(activation_checkpointing=True),
    "attention again": ExecutionConfig(activation_checkpointing=True, recompute_attention=True),
    "few logits": ExecutionConfig(logits_bytes=40 * 2 * 128),
    "compiled": ExecutionConfig(compile=True),
    "compiled, computed again": ExecutionConfig(compile=True, activation_checkpointing=True),
    "offloaded": ExecutionConfig(offload=True),
}


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory):
    found = open_group(0, 1, Path(tmp_path_factory.mktemp("group")) / "meeting", device=torch.device("cuda"))
    yield found
    found.close()


def loss_of(policy, device: str) -> torch.Tensor:
    pack = packed_rows().to(torch.device(device))
    logprobs, entropy = policy(pack, 0.8, True)
    return (logprobs * pack.advantages).sum() - 0.01 * entropy.sum()


def plain() -> tuple[float, dict[str, torch.Tensor]]:
    model = small_model("qwen3", **SIZES)
    loss = loss_of(PolicyModel(model), "cpu")
    loss.backward()
    return loss.item(), {name: param.grad for name, param in model.named_parameters()}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("dtype", "of_loss", "of_gradient"), [(torch.bfloat16, 1e-2, 5e-2), (torch.float32, 1e-4, 1e-3)]
)
def test_loss_and_gradients_are_the_plain_ones(
    way: str, dtype: torch.dtype, of_loss: float, of_gradient: float, group: LearnerGroup
) -> None:
    policy = ShardedPolicy(small_model("qwen3", **SIZES), group, dtype, WAYS[way])
    loss = loss_of(policy.module, "cuda")
    policy.backward(loss)
    policy.collect_gradients()
    expected, gradients = plain()
    assert loss.item() == pytest.approx(expected, rel=of_loss, abs=of_loss)
    for name, shard in policy.shards.items():
        wanted = gradients[name]
        assert float((shard.grad.cpu() - wanted).norm() / wanted.norm()) < of_gradient, name


def test_steps_leave_no_memory_behind(group: LearnerGroup) -> None:
    policy = ShardedPolicy(small_model("qwen3", **SIZES), group, torch.bfloat16)
    backend = on_policy(
        policy, optimizer=OptimizerConfig(), algorithm=AlgorithmConfig(), total_steps=10, temperature=1.0
    )
    packs, held = packed_rows(100, split=True), []
    denominators = Denominators(tokens=sum(pack.num_targets for pack in packs), rows=12)
    for _ in range(4):
        backend.step(packs, denominators)
        held.append(torch.cuda.memory_allocated())
    assert held[1:] == held[1:2] * 3


def test_a_critic_is_fused_as_a_policy_is(group: LearnerGroup) -> None:
    values = []
    for way in ("default", "by torch"):
        model = decoder_of(small_model("qwen3", **SIZES))
        critic = ShardedCritic(model, group, torch.bfloat16, WAYS[way])
        with torch.no_grad():
            critic.shards[HEAD].fill_(0.1)
        critic.forget_gathered()
        found = critic.module(packed_rows().to(torch.device("cuda")))
        found.sum().backward()
        values.append(found.detach())
    torch.testing.assert_close(values[0], values[1], rtol=5e-2, atol=5e-2)
