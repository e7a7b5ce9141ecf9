"""A model whose packed rows see each other is refused at load, by name; one whose rows are packed exactly is not."""

import warnings
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from streamrl.errors import ConfigError
from streamrl.learner.model.policy import PolicyModel
from streamrl.learner.model.value_model import ValueModel, decoder_of

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
ATTEND: dict[str, dict[str, Any]] = {
    "qwen2": {},
    "qwen3": {},
    "llama": {},
    "mistral": {"sliding_window": 5},
    "phi3": {},
    "olmo2": {},
    "smollm3": {},
    "glm4": {},
    "qwen3_moe": EXPERTS,
    "mixtral": {"num_local_experts": 4},
}
MIX_BY_ROW: dict[str, dict[str, Any]] = {
    "lfm2": {"layer_types": ["conv", "conv", "full_attention", "conv"]},
    "mamba": {"state_size": 8},
    "mamba2": {"num_heads": 8, "state_size": 8, "n_groups": 1},
    "qwen3_5_text": LINEAR,
    "qwen3_next": EXPERTS | LINEAR,
}
SEE_EACH_OTHER: dict[str, dict[str, Any]] = {
    "minimax": {"layer_types": ["linear_attention", "full_attention"] * 2, "num_local_experts": 2},
}


def model_of(family: str, settings: dict[str, Any]) -> PreTrainedModel:
    torch.manual_seed(0)
    with warnings.catch_warnings():  # of kernels that are not installed
        warnings.simplefilter("ignore")
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **SIZES | settings)).float()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", [*ATTEND, *MIX_BY_ROW])
def test_models_that_mix_tokens_by_attention_or_row_by_row_are_taken(family: str) -> None:
    PolicyModel(model_of(family, {**ATTEND, **MIX_BY_ROW}[family]))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", SEE_EACH_OTHER)
def test_a_model_whose_packed_rows_see_each_other_is_refused_by_name(family: str) -> None:
    model = model_of(family, SEE_EACH_OTHER[family])
    with pytest.raises(ConfigError, match=rf"cannot pack rows for {type(model).__name__}: .* mix tokens outside"):
        PolicyModel(model)


@pytest.mark.filterwarnings("ignore")
def test_so_is_one_that_only_scores() -> None:
    with pytest.raises(ConfigError, match="cannot pack rows for MiniMaxModel"):
        ValueModel(decoder_of(model_of("minimax", SEE_EACH_OTHER["minimax"])), None)
    ValueModel(decoder_of(model_of("mamba", MIX_BY_ROW["mamba"])), None)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("family", "settings"), [("stablelm", {}), ("nemotron", {}), ("recurrent_gemma", {})])
def test_a_model_that_cannot_compute_a_pack_is_refused_at_load(family: str, settings: dict[str, Any]) -> None:
    model = model_of(family, settings)
    with pytest.raises(ConfigError, match=rf"cannot compute a pack of rows by {type(model).__name__}"):
        PolicyModel(model)
