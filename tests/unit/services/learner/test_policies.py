"""A reference of another model has to fit the layout of the policy."""

from pathlib import Path

import pytest
from support.megatron.models import small_model

from streamrl.config.schema.learner import LearnerConfig, MegatronConfig
from streamrl.config.schema.run import Config
from streamrl.errors import ConfigError
from streamrl.models.tokenizer import write_character_tokenizer
from streamrl.services.learner.policies import require_layout

CONFIG = Config(learner=LearnerConfig(backend="megatron", num_workers=2, megatron=MegatronConfig(pipeline_parallel=2)))


def write_model(folder: Path, *, layers: int) -> None:
    small_model("qwen3", num_hidden_layers=layers).save_pretrained(folder)
    write_character_tokenizer("0123456789+=", 16, folder)


def test_a_reference_whose_layers_are_not_shared_out_evenly_is_refused_with_the_numbers(tmp_path: Path) -> None:
    write_model(tmp_path, layers=3)
    said = "does not fit the layout of the policy: learner.megatron.pipeline_parallel: the model's 3 layers"
    with pytest.raises(ConfigError, match=said):
        require_layout(CONFIG, tmp_path, "learner.algorithm.reference.path")


def test_a_reference_with_as_many_layers_for_each_stage_is_taken(tmp_path: Path) -> None:
    write_model(tmp_path, layers=2)
    require_layout(CONFIG, tmp_path, "learner.algorithm.reference.path")
