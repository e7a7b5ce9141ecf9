"""The table of parameters: it knows what other servers' routes know, no name twice, and it is the page of the docs."""

from typing import Any

import pytest
from support.repository import ROOT

from streamrl.gateway.openai.bodies import ChatRequest, CompletionRequest
from streamrl.gateway.openai.parameters import IGNORED, KEPT, NEUTRAL, check, table
from streamrl.gateway.refusal import Refusal

NAMES = """
messages model frequency_penalty logit_bias logprobs top_logprobs max_tokens max_completion_tokens n presence_penalty
response_format seed stop stream stream_options temperature top_p tools tool_choice reasoning_effort
thinking_token_budget include_reasoning parallel_tool_calls user use_beam_search top_k min_p repetition_penalty
length_penalty stop_token_ids include_stop_str_in_output ignore_eos min_tokens skip_special_tokens
spaces_between_special_tokens truncate_prompt_tokens prompt_logprobs allowed_token_ids bad_words echo
add_generation_prompt continue_final_message add_special_tokens documents chat_template chat_template_kwargs
mm_processor_kwargs structured_outputs priority request_id session_id return_tokens_as_token_ids return_token_ids
cache_salt kv_transfer_params vllm_xargs stream_interval

regex ebnf no_stop_trim separate_reasoning stream_reasoning lora_path return_hidden_states rid

audio function_call functions metadata modalities prediction prompt_cache_key safety_identifier service_tier store
verbosity web_search_options best_of suffix prompt
"""
"""Of the bodies of vLLM's, SGLang's and OpenAI's routes."""


def test_what_other_servers_know_is_in_the_table_and_no_name_is_there_twice() -> None:
    names = [*KEPT, *IGNORED, *NEUTRAL]
    assert set(NAMES.split()) - set(names) == set()
    of_one_route = {"add_special_tokens", "echo", "tool_choice", "top_logprobs"}
    of_one_route |= {"add_generation_prompt", "continue_final_message"}
    assert {name for name in names if names.count(name) > 1} == of_one_route, "these are kept in one, neutral in others"


def test_every_field_of_a_body_is_in_the_table() -> None:
    fields = {*ChatRequest.model_fields, *CompletionRequest.model_fields}
    assert fields == set(KEPT) - {"metadata"}


@pytest.mark.parametrize("name", NEUTRAL)
def test_values_that_change_nothing_are_taken_and_others_refused_with_the_reason(name: str) -> None:
    for value in NEUTRAL[name].values:
        check({name: value})
    with pytest.raises(Refusal, match="would ask for") as refusal:
        check({name: "something else"})
    assert (refusal.value.code, refusal.value.param) == ("unsupported_parameter", name)


@pytest.mark.parametrize("value", [1, 1.0])
def test_a_number_is_neutral_in_any_form_and_a_truth_is_no_number(value: Any) -> None:
    check({"length_penalty": value, "best_of": value})
    with pytest.raises(Refusal, match="best_of"):
        check({"best_of": True})


@pytest.mark.parametrize("name", ["temprature", "messages", "max_completion_tokens"])
def test_a_parameter_of_another_route_is_none_of_this_one(name: str) -> None:
    with pytest.raises(Refusal, match="not a parameter of this route"):
        check({name: 1})


def test_a_null_says_nothing_under_any_name() -> None:
    check({"temprature": None, "best_of": None, "messages": None})


def test_the_page_is_made_from_the_table() -> None:
    assert (ROOT / "docs/guides/gateway-parameters.md").read_text() == "\n".join(table()) + "\n"
