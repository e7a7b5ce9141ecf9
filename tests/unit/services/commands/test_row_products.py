"""`streamrl check` tells how this machine keeps rows of a product apart."""

import pytest

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


@pytest.mark.parametrize("changed", [{"deterministic": False}, {"engine": "scripted"}, {"engine": "vllm"}])
def test_nothing_is_told_where_no_rows_are_kept_apart(changed: dict[str, object]) -> None:
    assert product_lines(Config(model=MODEL, rollout=RolloutConfig(**changed))) == []  # type: ignore[arg-type]
