"""`streamrl check` tells how this machine keeps rows of a product apart."""

import pytest
from transformers import Qwen3MoeConfig

from streamrl.config.estimates.model_facts import facts_of
from streamrl.config.estimates.model_of import run_facts
from streamrl.config.schema.rollout import RolloutConfig
from streamrl.config.schema.run import Config, ModelConfig
from streamrl.engines.torch.families import describe
from streamrl.engines.torch.weights import product_shapes as shapes_of_the_engine
from streamrl.models.load import build_model
from streamrl.services.commands.row_products import product_lines, product_shapes

MODEL = ModelConfig(preset="tiny-qwen3")


def test_the_way_that_a_replica_would_take_is_measured() -> None:
    (line,) = product_lines(Config(model=MODEL))
    assert line.startswith("products of rows: ")


def test_it_is_measured_for_the_shapes_that_the_engine_multiplies_with() -> None:
    facts, _ = run_facts(Config(model=MODEL))
    assert facts is not None
    assert set(product_shapes(facts)) == shapes_of_the_engine(describe(build_model(MODEL, 0).config))


def test_of_a_model_with_experts_it_is_measured_for_the_router_and_the_matrices_of_an_expert() -> None:
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    experts = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
    config = Qwen3MoeConfig(vocab_size=50, hidden_size=32, intermediate_size=64, **sizes, **experts)
    facts = facts_of(config.to_dict(), num_parameters=1)
    assert set(product_shapes(facts)) == shapes_of_the_engine(describe(config))


@pytest.mark.parametrize("changed", [{"deterministic": False}, {"engine": "scripted"}, {"engine": "vllm"}])
def test_nothing_is_told_where_no_rows_are_kept_apart(changed: dict[str, object]) -> None:
    assert product_lines(Config(model=MODEL, rollout=RolloutConfig(**changed))) == []  # type: ignore[arg-type]
