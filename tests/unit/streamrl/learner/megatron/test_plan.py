"""Which rank has which tensor, in every layout, and what is refused."""

import pytest
from support.megatron.models import small_model
from transformers import PreTrainedModel

from streamrl.config.estimates.megatron import MegatronLayout
from streamrl.config.known import MEGATRON_TYPES
from streamrl.errors import ConfigError
from streamrl.learner.megatron.cuts import WHOLE
from streamrl.learner.megatron.families import FAMILIES, Family, family_of
from streamrl.learner.megatron.plan import Entry, canonical, make_plan

LAYOUTS = [
    MegatronLayout(),
    MegatronLayout(4, tensor=2, pipeline=2),
    MegatronLayout(2, pipeline=2, virtual=2),
    MegatronLayout(4, pipeline=4),
    MegatronLayout(4, expert=2, pipeline=2),
]


def plan_of(model: PreTrainedModel, layout: MegatronLayout, family: Family | None = None) -> tuple[Entry, ...]:
    names = [name for name, _ in model.named_parameters()]
    experts = getattr(model.config, "num_local_experts", 0)
    rows = family or family_of(model.config)
    return make_plan(rows, names, layout, num_layers=model.config.num_hidden_layers, num_experts=experts)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("kind", FAMILIES)
def test_each_tensor_goes_out_from_one_place(kind: str, layout: MegatronLayout, tied: bool) -> None:
    model = small_model(kind, tie_word_embeddings=tied)
    plan = plan_of(model, layout)
    out = [name for entry in plan if entry.exported for name in entry.tensors]
    assert sorted(out) == sorted(name for name, _ in model.named_parameters())
    places = [(entry.stage, place) for entry in plan for place in entry.places]
    assert len(places) == len(set(places))
    loads_twice = [entry.tensors for entry in plan if not entry.exported]
    assert loads_twice == ([("model.embed_tokens.weight",)] if tied and layout.pipeline > 1 else [])


@pytest.mark.parametrize("tied", [False, True])
def test_a_critic_has_a_head_for_values_in_the_last_stage_alone(tied: bool) -> None:
    model = small_model("qwen3", tie_word_embeddings=tied)
    names = [name for name, _ in model.named_parameters() if name != "lm_head.weight"] + ["score.weight"]
    plan = make_plan(family_of(model.config), names, MegatronLayout(2, pipeline=2), num_layers=4)
    assert sorted(name for entry in plan for name in entry.tensors) == sorted(names)
    (head,) = (entry for entry in plan if entry.tensors == ("score.weight",))
    assert (head.stage, head.places, head.cut) == (1, ("0.output_layer.weight",), WHOLE)


def test_layers_take_turns_over_interleaved_stages() -> None:
    plan = plan_of(small_model("llama"), MegatronLayout(2, pipeline=2, virtual=2))
    norms = {entry.tensors[0]: (entry.stage, entry.places[0]) for entry in plan if "post_attention" in entry.tensors[0]}
    assert norms == {
        f"model.layers.{layer}.post_attention_layernorm.weight": (
            layer % 2,
            f"{layer // 2}.decoder.layers.0.pre_mlp_layernorm.weight",
        )
        for layer in range(4)
    }


def test_a_rank_has_its_share_of_the_experts() -> None:
    plan = plan_of(small_model("mixtral"), MegatronLayout(2, expert=2))
    first = next(entry for entry in plan if entry.of_experts)
    assert first.tensors == ("model.layers.0.mlp.experts.gate_up_proj",)
    assert first.places == tuple(f"0.decoder.layers.0.mlp.experts.local_experts.{e}.linear_fc1.weight" for e in (0, 1))


def test_names_of_transformer_engine_are_those_of_the_local_layers() -> None:
    layer = "decoder.layers.3."
    assert canonical(f"{layer}self_attention.linear_qkv.layer_norm_weight") == f"{layer}input_layernorm.weight"
    assert canonical(f"{layer}mlp.linear_fc1.layer_norm_weight") == f"{layer}pre_mlp_layernorm.weight"
    experts = f"{layer}mlp.experts."
    assert canonical(f"{experts}linear_fc2.weight12") == f"{experts}local_experts.12.linear_fc2.weight"
    for same in (f"{layer}mlp.linear_fc1.weight", f"{experts}local_experts.0.linear_fc1.weight"):
        assert canonical(same) == same


def test_a_check_knows_the_families_of_the_table() -> None:
    assert sorted(MEGATRON_TYPES) == sorted(FAMILIES)


def test_a_family_without_rows_is_refused_with_where_they_go() -> None:
    with pytest.raises(
        ConfigError, match=r"no mapping for models of type 'phi3', only for llama, mixtral.*families.py"
    ):
        family_of(small_model("phi3").config)


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        ("llama", {"hidden_act": "gelu"}, "hidden_act = 'gelu', not 'silu'"),
        ("llama", {"attention_bias": True}, "attention_bias = True, not False"),
        ("mixtral", {"sliding_window": 128}, "sliding_window = 128, not None"),
        ("qwen3_moe", {"mlp_only_layers": [1]}, r"mlp_only_layers = \[1\], not \[\]"),
        ("qwen2", {"layer_types": ["full_attention"] * 3 + ["sliding_attention"]}, "layers with 'sliding_attention'"),
    ],
)
def test_a_model_of_another_kind_of_layers_is_refused(kind: str, change: dict[str, object], said: str) -> None:
    config = small_model(kind).config
    config.update(change)
    with pytest.raises(ConfigError, match=said):
        family_of(config)


def test_a_weight_that_the_rows_have_no_place_for_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no place for model.layers.0.self_attn.k_norm.weight, .* and 5 more"):
        plan_of(small_model("qwen3"), MegatronLayout(), FAMILIES["llama"])


def test_a_weight_that_the_model_lacks_is_named() -> None:
    with pytest.raises(ConfigError, match=r"the model has no model.layers.0.self_attn.k_norm.weight"):
        plan_of(small_model("llama"), MegatronLayout(), FAMILIES["qwen3"])
