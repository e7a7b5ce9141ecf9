"""Moments in 8 bits: what is kept in them, how close to float32 they train, and that a checkpoint has them whole."""

from collections.abc import Iterator

import pytest
import torch
from support.learner.small_policy import make_rows
from transformers import Qwen3Config, Qwen3ForCausalLM

from streamrl.config.estimates.sizes import MOMENT_BLOCK
from streamrl.config.schema.learner import OptimizerConfig
from streamrl.errors import ConfigError, DataError
from streamrl.learner.batch.packing import pack
from streamrl.learner.batch.rows import count_targets
from streamrl.learner.checkpoint.digest import weight_digest
from streamrl.learner.fsdp import FsdpBackend
from streamrl.learner.model.sharding import ShardedPolicy
from streamrl.learner.objectives import nll_loss
from streamrl.learner.optim.moments import MOMENTS
from streamrl.learner.optim.optimizer import make_optimizer
from streamrl.learner.parallel.process_group import LearnerGroup, open_group

pytest.importorskip("torchao", reason="pip install -e '.[low-bit]'")

SEED = 11


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LearnerGroup]:
    group = open_group(0, 1, tmp_path_factory.mktemp("group") / "store", device=torch.device("cpu"))
    yield group
    group.close()


def make_backend(group: LearnerGroup, kind: str) -> FsdpBackend:
    """All its matrices have rows of whole blocks, but the second of each MLP, whose rows have 200 elements."""
    torch.manual_seed(5)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=19,
            hidden_size=128,
            intermediate_size=200,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=1,
            head_dim=32,
            max_position_embeddings=64,
            tie_word_embeddings=True,
        )
    )
    settings = OptimizerConfig(kind=kind, lr=2e-3, warmup_steps=5, weight_decay=0.01)
    return FsdpBackend(ShardedPolicy(model, group, torch.float32), nll_loss, settings, 60)


def fit(backend: FsdpBackend, steps: int) -> list[float]:
    """The losses of steps on the same rows, which are there to be learned by heart."""
    rows = make_rows(rows=16)
    packs = pack(rows, rows.rewards, 128)
    return [backend.step(packs, count_targets(rows))["loss/policy"] for _ in range(steps)]


def parameters(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    torch.manual_seed(SEED)
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def gradients(step: int, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    torch.manual_seed(SEED + 1 + step)
    return [torch.randn(shape) * 10.0 ** torch.randint(-4, 1, shape) for shape in shapes]


def test_matrices_of_whole_blocks_are_kept_in_8_bits_and_all_else_in_float32() -> None:
    params = parameters((3, MOMENT_BLOCK), (2, 2, 2 * MOMENT_BLOCK), (4, MOMENT_BLOCK + 1), (MOMENT_BLOCK,))
    optimizer = make_optimizer(params, OptimizerConfig(kind="adamw_8bit"))
    for param in params:
        param.grad = torch.ones_like(param)
    optimizer.step()
    for moment in MOMENTS:
        kinds = [
            {kind: (part.dtype, tuple(part.shape)) for kind, part in optimizer.parts(param, moment)} for param in params
        ]
        assert kinds == [
            {moment: (torch.uint8, (3, 64)), f"{moment}_scale": (torch.float32, (3, 1))},
            {moment: (torch.uint8, (2, 2, 128)), f"{moment}_scale": (torch.float32, (2, 2, 2))},
            {moment: (torch.float32, (4, 65))},
            {moment: (torch.float32, (64,))},
        ]


def test_a_model_without_a_whole_block_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"would keep nothing in 8 bits: .* multiple of 64 elements; set kind"):
        make_optimizer(parameters((64, 24), (64,)), OptimizerConfig(kind="adamw_8bit"))


def test_moments_take_a_little_more_than_a_quarter_of_the_bytes() -> None:
    """In memory each moment of a matrix also has the table of its 256 values, which is 1 KiB however large it is."""
    held, saved = {}, {}
    for kind in ("adamw", "adamw_8bit"):
        params = parameters((256, 512), (512,))
        optimizer = make_optimizer(params, OptimizerConfig(kind=kind))
        for param in params:
            param.grad = torch.ones_like(param)
        optimizer.step()
        held[kind] = sum(_bytes_in_memory(optimizer.state[param][moment]) for param in params for moment in MOMENTS)
        parts = [part for param in params for moment in MOMENTS for _, part in optimizer.parts(param, moment)]
        saved[kind] = sum(part.nbytes for part in parts)
        assert saved[kind] == sum(optimizer.moment_bytes(param, param.numel()) for param in params)
    assert saved["adamw_8bit"] / saved["adamw"] < 0.27
    assert held["adamw_8bit"] / held["adamw"] < 0.272


def _bytes_in_memory(moment: torch.Tensor) -> int:
    names, _ = moment.__tensor_flatten__() if hasattr(moment, "__tensor_flatten__") else ((), None)
    return sum(getattr(moment, name).nbytes for name in names) or moment.nbytes


def test_rows_shared_out_have_the_moments_and_the_update_of_the_whole_matrix() -> None:
    """Shards of 2, 0, 3 and 1 rows; the second has none, as a rank has of a critic's head."""
    config = OptimizerConfig(kind="adamw_8bit", lr=1e-2, weight_decay=0.1)
    (whole,) = parameters((6, 2 * MOMENT_BLOCK))
    shards = [shard.clone().requires_grad_() for shard in whole.detach().split([2, 0, 3, 1])]
    one, many = make_optimizer([whole], config), make_optimizer(shards, config)
    for step in range(4):
        (whole.grad,) = gradients(step, (6, 2 * MOMENT_BLOCK))
        for shard, grad in zip(shards, whole.grad.split([2, 0, 3, 1]), strict=True):
            shard.grad = grad.clone()
        one.step()
        many.step()
    assert torch.equal(torch.cat(shards), whole)
    for moment in MOMENTS:
        parts = [dict(many.parts(shard, moment)) for shard in shards]
        for kind, expected in one.parts(whole, moment):
            assert torch.equal(torch.cat([part[kind] for part in parts]), expected), kind


def test_a_moment_is_its_value_times_the_scale_of_its_block() -> None:
    """Within 2% of the block's largest for the first moment, which has a sign, and 1% for the second, whose values lie
    twice as close."""
    params = {kind: parameters((32, 2 * MOMENT_BLOCK))[0] for kind in ("adamw", "adamw_8bit")}
    states = {}
    for kind, param in params.items():
        optimizer = make_optimizer([param], OptimizerConfig(kind=kind))
        (param.grad,) = gradients(0, (32, 2 * MOMENT_BLOCK))
        optimizer.step()
        states[kind] = optimizer.state[param]
    for moment, bound in zip(MOMENTS, (0.02, 0.01), strict=True):
        exact = states["adamw"][moment].view(-1, MOMENT_BLOCK)
        error = (states["adamw_8bit"][moment].dequantize().view(-1, MOMENT_BLOCK) - exact).abs()
        largest = exact.abs().amax(dim=1, keepdim=True)
        assert 0.0 < (error / largest).max() < bound, f"seed {SEED}"


def dynamic_values(*, signed: bool) -> list[float]:
    """The 256 values of the dynamic tree (Dettmers 2016): in each of seven decades the middles of equal parts, which
    are twice as many in the next one."""
    values = [0.0, 1.0]
    for decade in range(7):
        count = 2**decade if signed else 2 ** (decade + 1)
        middles = [10.0 ** (decade - 6) * (0.1 + 0.9 * (part + 0.5) / count) for part in range(count)]
        values += [*middles, *(-middle for middle in middles if signed)]
    return sorted(values)


@pytest.mark.parametrize(("moment", "signed"), [("exp_avg", True), ("exp_avg_sq", False)])
def test_the_values_that_a_checkpoint_has_indices_of_stay_what_they_are(moment: str, signed: bool) -> None:
    """A torchao with other ones would read every checkpoint of this one wrongly."""
    (param,) = parameters((1, MOMENT_BLOCK))
    optimizer = make_optimizer([param], OptimizerConfig(kind="adamw_8bit"))
    param.grad = torch.ones_like(param)
    optimizer.step()
    values = optimizer.state[param][moment].qmap.tolist()
    assert len(values) == 256
    assert values == pytest.approx(dynamic_values(signed=signed), rel=1e-5)


def test_sixty_steps_in_8_bits_lose_as_much_as_in_float32(group: LearnerGroup) -> None:
    """From 3.0 to 0.1 nats a token, learned by heart; measured over five seeds the two were never more than 0.008
    apart."""
    full, low = (fit(make_backend(group, kind), 60) for kind in ("adamw", "adamw_8bit"))
    assert low[0] == full[0] > 2.5
    assert low[-1] < 0.1
    assert low != full
    assert low == pytest.approx(full, abs=0.02)


def test_a_resumed_learner_goes_on_to_the_bit(group: LearnerGroup) -> None:
    backend, resumed = (make_backend(group, "adamw_8bit") for _ in range(2))
    fit(backend, 5)
    state = {name: tensor.clone() for name, tensor in backend.state_tensors()}
    assert backend.state_bytes == sum(tensor.nbytes for tensor in state.values())
    resumed.load_state(state.__getitem__, backend.state_extra())
    assert weight_digest(resumed.state_tensors()) == weight_digest(state.items())
    assert fit(resumed, 5) == fit(backend, 5)
    assert weight_digest(resumed.state_tensors()) == weight_digest(backend.state_tensors())


@pytest.mark.parametrize(("saved", "resumed"), [("adamw", "adamw_8bit"), ("adamw_8bit", "adamw")])
def test_a_state_of_the_other_kind_is_refused(saved: str, resumed: str, group: LearnerGroup) -> None:
    backend = make_backend(group, saved)
    fit(backend, 1)
    state = {name: tensor.clone() for name, tensor in backend.state_tensors()}
    with pytest.raises(DataError, match=r"has exp_avg/model.embed_tokens.weight in torch.* under another `kind`"):
        make_backend(group, resumed).load_state(state.__getitem__, backend.state_extra())


def test_scales_of_another_number_of_blocks_are_refused(group: LearnerGroup) -> None:
    backend, name = make_backend(group, "adamw_8bit"), "exp_avg_scale/model.embed_tokens.weight"
    fit(backend, 1)
    state = {name: tensor.clone() for name, tensor in backend.state_tensors()}
    state[name] = state[name].repeat(1, 2)
    with pytest.raises(DataError, match=r"the shape is \(19, 4\), expected \(19, 2\)"):
        backend.load_state(state.__getitem__, backend.state_extra())
