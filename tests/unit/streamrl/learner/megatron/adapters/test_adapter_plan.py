"""Where adapters are in megatron-core's layers: what a rank's adapters add is its part of what the whole ones add."""

from collections.abc import Sequence

import pytest
import torch
from support.megatron.models import small_model
from support.megatron.new_family import PHI3
from transformers import PreTrainedModel

from streamrl.config.estimates.megatron import MegatronLayout
from streamrl.errors import ConfigError
from streamrl.learner.megatron.adapters.plan import AdaptedLinear, adapted_linears, in_groups
from streamrl.learner.megatron.cuts import COLUMNS, FUSED_GATE_UP, GATE_UP, HEADS, ROWS, WHOLE, Cut, Sizes
from streamrl.learner.megatron.families import Family, family_of
from streamrl.learner.megatron.plan import Entry, make_plan
from streamrl.models.adapters.names import adapter_of

SIZES = Sizes(groups=4, queries=3, vocabulary=67)
HEAD, HIDDEN, RANK = 2, 8, 3
FUSED: dict[str, tuple[Cut, tuple[int, ...]]] = {
    "heads": (HEADS, (4 * 3 * HEAD, 4 * HEAD, 4 * HEAD)),
    "gate and up": (GATE_UP, (12, 12)),
    "gate and up in one": (FUSED_GATE_UP, (24,)),
    "by inputs": (COLUMNS, (12,)),
}
"""The cut of a layer's weight, and how many outputs each of its projections has."""


def entry(cut: Cut, count: int) -> Entry:
    names = tuple(f"model.layers.0.p{number}.weight" for number in range(count))
    return Entry(names, 0, 0, ("0.decoder.layers.0.linear.weight",), cut)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randint(-4, 5, shape).double()


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("without", [None, 0])
@pytest.mark.parametrize("layer", FUSED)
def test_a_rank_changes_its_outputs_as_the_merged_weight_does(layer: str, without: int | None, ranks: int) -> None:
    cut, outputs = FUSED[layer]
    torch.manual_seed(0)
    weight = entry(cut, len(outputs))
    adapted = [number for number in range(len(outputs)) if number != without] or [0]
    linear = AdaptedLinear(weight, frozenset(weight.tensors[number] for number in adapted))
    pairs = {number: (drawn(RANK, HIDDEN), drawn(outputs[number], RANK)) for number in adapted}
    changes = [
        pairs[number][1] @ pairs[number][0] if number in pairs else torch.zeros(count, HIDDEN).double()
        for number, count in enumerate(outputs)
    ]
    for rank in range(ranks):
        mine = cut.part(changes, SIZES, rank, ranks)
        x = drawn(5, mine.shape[1])
        assert torch.equal(added(linear, pairs, outputs, x, rank, ranks), x @ mine.T)


def added(
    linear: AdaptedLinear,
    pairs: dict[int, tuple[torch.Tensor, torch.Tensor]],
    outputs: Sequence[int],
    x: torch.Tensor,
    rank: int,
    ranks: int,
) -> torch.Tensor:
    """What the adapters of a rank add to its outputs, or to its part of their sum."""
    ways = 1 if linear.by_inputs else ranks
    parts = [x.new_zeros(len(x), count // ways) for count in outputs]
    for number, whole in pairs.items():
        entries = linear.pair(linear.weight.tensors[number])
        lora_a, lora_b = (
            one.cut.part([tensor], SIZES, rank, ranks) for one, tensor in zip(entries, whole, strict=True)
        )
        parts[number] = x @ lora_a.T @ lora_b.T
    return in_groups(parts, SIZES.groups // ranks if linear.weight.cut is HEADS else 1)


def plan_of(model: PreTrainedModel, layout: MegatronLayout, family: Family | None = None) -> tuple[Entry, ...]:
    names = [name for name, _ in model.named_parameters()]
    experts = getattr(model.config, "num_local_experts", 0)
    return make_plan(
        family or family_of(model.config), names, layout, num_layers=model.config.num_hidden_layers, num_experts=experts
    )


def adapters_on(model: PreTrainedModel, *targets: str) -> list[str]:
    weights = (f"{name}.weight" for name, module in model.named_modules() if name.rpartition(".")[2] in targets)
    return [name for weight in weights for name in adapter_of(weight)]


@pytest.mark.parametrize(
    "layout", [MegatronLayout(), MegatronLayout(4, tensor=2, pipeline=2), MegatronLayout(2, pipeline=2, virtual=2)]
)
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "qwen3_moe"])
def test_each_adapter_is_in_one_place_beside_the_weight_that_it_changes(kind: str, layout: MegatronLayout) -> None:
    model = small_model(kind)
    plan = plan_of(model, layout)
    names = adapters_on(model, "q_proj", "v_proj", "o_proj", "up_proj", "down_proj")
    linears = adapted_linears(plan, names)
    entries = [one for linear in linears for one in linear.entries()]
    assert sorted(name for one in entries for name in one.tensors) == sorted(names)
    assert len({(one.stage, one.places) for one in entries}) == len(names)
    for linear in linears:
        assert linear.weight in plan
        for one in linear.entries():
            assert (one.stage, one.chunk) == (linear.weight.stage, linear.weight.chunk)
            assert one.places[0].startswith(linear.place + ".adapters.")


def test_a_projection_has_its_own_pair_in_a_fused_layer() -> None:
    model = small_model("qwen2")
    first, second = adapted_linears(plan_of(model, MegatronLayout()), adapters_on(model, "v_proj", "o_proj"))[:2]
    assert first.place == "0.decoder.layers.0.self_attention.linear_qkv"
    assert [short for short, _ in first.projections] == ["q_proj", "k_proj", "v_proj"]
    lora_a, lora_b = first.entries()
    assert lora_a.places == ("0.decoder.layers.0.self_attention.linear_qkv.adapters.v_proj.lora_a",)
    assert lora_b.tensors == ("model.layers.0.self_attn.v_proj.lora_B.weight",)
    assert [lora_a.cut, lora_b.cut] == [WHOLE, ROWS]
    assert [one.cut for one in second.entries()] == [COLUMNS, WHOLE]


@pytest.mark.parametrize("number", [0, 1])
def test_a_weight_that_is_cut_in_another_way_is_refused_by_name(number: int) -> None:
    model = small_model("phi3")
    plan = plan_of(model, MegatronLayout(), PHI3)
    name = f"model.layers.{number}.self_attn.qkv_proj.weight"
    with pytest.raises(ConfigError, match=rf"learner.lora.targets: .* no adapters on {name}, whose .* is FusedHeads"):
        adapted_linears(plan, adapter_of(name))
    assert adapted_linears(plan, adapters_on(model, "gate_up_proj"))


def test_experts_have_no_adapters() -> None:
    plan = (Entry(("experts.weight",), 0, 0, ("0.experts.weight",), GATE_UP, of_experts=True),)
    with pytest.raises(ConfigError, match=r"no adapters on experts.weight"):
        adapted_linears(plan, adapter_of("experts.weight"))
