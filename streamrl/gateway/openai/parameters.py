"""Every parameter that clients of OpenAI's, vLLM's and SGLang's routes send, and what becomes of it. Pure.

A parameter is kept, or it is taken with the values that change nothing, or it has no part in the answer. Any other
value, and any other name, is refused: an answer that was silently made in another way than it was asked for is wrong
data for whoever trains on it. The table of the docs is made from this one:

    python -m streamrl.gateway.openai.parameters > docs/guides/gateway-parameters.md
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from streamrl.gateway.refusal import invalid


class Neutral(NamedTuple):
    """The values that are taken, and what any other one would ask for."""

    values: tuple[Any, ...]
    asks_for: str


KEPT: Final[Mapping[str, str]] = {
    "add_generation_prompt": "of a chat: with `false` its prompt ends behind the last message",
    "add_special_tokens": "whether the text of a completion gets the model's special tokens; in a chat only `false`",
    "chat_template_kwargs": "arguments of the chat template, for instance `enable_thinking`",
    "continue_final_message": "of a chat: the answer goes on with the last message, which is of the assistant",
    "echo": "the text of a completion begins with the prompt, and its `logprobs` with the prompt's",
    "frequency_penalty": "is taken from a token's logit for each time that the completion has it",
    "guided_choice": "the text is one of these",
    "guided_json": "the text follows a JSON schema",
    "guided_regex": "the text follows a regular expression",
    "logit_bias": "is added to the logits of these tokens",
    "logprobs": "log-probs of the tokens; of a completion a number: so many of the likeliest in the place of each",
    "max_completion_tokens": "as `max_tokens`, of a chat",
    "max_tokens": "the most tokens of a completion; 0 is for `echo` alone",
    "messages": "the conversation, of a chat",
    "metadata": "`session_id` makes the request a part of a session; the rest is ignored",
    "min_p": "tokens less likely than this share of the likeliest are not sampled",
    "model": "the one model, named as the run",
    "min_tokens": "before so many tokens no end token comes",
    "n": "completions of each prompt",
    "parallel_tool_calls": "with false the first call of a message is shown alone",
    "presence_penalty": "is taken once from the logits of tokens that the completion has",
    "prompt": "text, texts, ids, or lists of ids, of a completion",
    "prompt_logprobs": "log-probs of the prompt, and so many of the likeliest in the place of each, as vLLM has them",
    "reasoning_effort": "an argument of the chat template; so is `enable_thinking`, which is false with `none`",
    "regex": "the text follows a regular expression",
    "repetition_penalty": "divides positive logits of tokens that prompt or completion have, and multiplies others",
    "response_format": "with `json_object` or `json_schema` the text follows a schema",
    "return_token_ids": "ids of prompts and completions where vLLM has them",
    "return_tokens_as_token_ids": "tokens of log-probs as `token_id:7`",
    "seed": "decides what is sampled, given the weights",
    "skip_special_tokens": "with `false` the text shows special tokens, but for the one that ends it",
    "stop": "strings that end a completion, and are left out of it",
    "stop_token_ids": "ids that end a completion, and are part of it",
    "stream": "the answer in server-sent events",
    "stream_options": "`include_usage`: a last event counts the tokens; `continuous_usage_stats`: each event does",
    "structured_outputs": "`json`, `regex`, `choice` or `json_object`: what the text follows",
    "temperature": "divides the logits",
    "tool_choice": "`auto`; `none` shows no tools, `allowed_tools` these; with `required` or a name calls are made",
    "tools": "reach the chat template; calls come back where they are read",
    "top_k": "so many of the likeliest tokens are sampled from; 0 and -1 are all",
    "top_logprobs": "of a chat with `logprobs`: so many of the likeliest tokens in the place of each",
    "top_p": "the likeliest tokens of this share are sampled from",
}
"""What changes the answer as it says."""

IGNORED: Final[Mapping[str, str]] = {
    "cache_salt": "the cache is keyed by the version",
    "priority": "all requests are equal",
    "prompt_cache_key": "sessions say what belongs together",
    "prompt_cache_retention": "sessions say what belongs together",
    "request_id": "ids are the gateway's",
    "rid": "ids are the gateway's",
    "routed_experts_prompt_start": "where a prompt's routes of experts would begin, of which none are told",
    "safety_identifier": "nobody looks at it",
    "service_tier": "there is one",
    "session_id": "of vLLM's router; a session has a header, or `metadata`",
    "spaces_between_special_tokens": "a text has the white space that the tokenizer writes",
    "store": "nothing is stored but sessions",
    "stream_interval": "tokens come about 20 times a second",
    "user": "nobody looks at it",
}
"""What has no part in the answer, and why."""

_GUIDED = "output by a grammar in a language that is not read here; `regex` and JSON schemas are"
_PICTURES = "pictures, sound or video"

NEUTRAL: Final[Mapping[str, Neutral]] = {
    "add_generation_prompt": Neutral((None, True), "the end of a chat's prompt"),
    "add_special_tokens": Neutral((None, False), "special tokens beside those of the template"),
    "allowed_token_ids": Neutral((None, []), "a part of the vocabulary"),
    "audio": Neutral((None,), _PICTURES),
    "bad_words": Neutral((None, []), "words that may not be sampled"),
    "best_of": Neutral((None, 1), "the likeliest of several completions"),
    "chat_template": Neutral((None,), "another chat template than the model's"),
    "continue_final_message": Neutral((None, False), "a message that goes on, which is of a chat"),
    "documents": Neutral((None, []), "documents for the template"),
    "ebnf": Neutral((None, ""), _GUIDED),
    "echo": Neutral((None, False), "the prompt in the answer, which a completion may have"),
    "function_call": Neutral((None, "none"), "a call, in the form before `tool_choice`"),
    "functions": Neutral((None, []), "tools, in the form before `tools`"),
    "guided_grammar": Neutral((None,), _GUIDED),
    "ignore_eos": Neutral((None, False), "completions behind their end"),
    "include_reasoning": Neutral((None, True), "a message without the model's thoughts"),
    "include_stop_str_in_output": Neutral((None, False), "the stop string in the answer"),
    "kv_transfer_params": Neutral((None, {}), "a cache of another server"),
    "length_penalty": Neutral((None, 1), "beam search"),
    "logits_processors": Neutral((None, []), "another distribution than the model's"),
    "lora_path": Neutral((None, ""), "another adapter than the one that is trained"),
    "mm_processor_kwargs": Neutral((None, {}), _PICTURES),
    "modalities": Neutral((None, ["text"]), _PICTURES),
    "no_stop_trim": Neutral((None, False), "the stop string in the answer"),
    "prediction": Neutral((None,), "speculation"),
    "return_hidden_states": Neutral((None, False), "the model's hidden states"),
    "separate_reasoning": Neutral((None, True), "thoughts in the text"),
    "stream_reasoning": Neutral((None, True), "thoughts at the end"),
    "suffix": Neutral((None, ""), "text between two texts"),
    "thinking_token_budget": Neutral((None,), "a bound of the model's thoughts"),
    "tool_choice": Neutral((None, "auto", "none"), "calls, which are of a chat"),
    "top_logprobs": Neutral((None, 0), "the likeliest tokens, of which a completion's `logprobs` is the number"),
    "truncate_prompt_tokens": Neutral((None,), "a prompt that is cut"),
    "use_beam_search": Neutral((None, False), "beam search"),
    "verbosity": Neutral((None, "medium"), "a model that knows it"),
    "vllm_xargs": Neutral((None, {}), "arguments of a server"),
    "web_search_options": Neutral((None,), "a search"),
}
"""What is taken with these values alone."""


def check(more: Mapping[str, Any]) -> None:
    """Of a body, what its form has no field for. Raises Refusal."""
    for name, value in more.items():
        if name in IGNORED or name == "metadata" or value is None:  # clients send a null for what is not set
            continue
        rule = NEUTRAL.get(name)
        if rule is None:
            raise invalid("unknown_parameter", f"{name!a} is not a parameter of this route", name)
        if not any(_same(value, neutral) for neutral in rule.values):
            what = f"{name} would ask for {rule.asks_for}; leave it out, or send {rule.values[-1]!a}"
            raise invalid("unsupported_parameter", what, name)


def _same(value: Any, neutral: Any) -> bool:
    """1 is 1.0, and not true."""
    return bool(value == neutral) and isinstance(value, bool) == isinstance(neutral, bool)


def table() -> Iterator[str]:
    """The page of the docs, line by line."""
    yield "# Parameters of the gateway's routes"
    yield ""
    yield "Made by `python -m streamrl.gateway.openai.parameters`; a test holds it equal to the code."
    yield ""
    yield "| parameter | what becomes of it |"
    yield "|---|---|"
    rows = {name: f"`{_neutral(rule)}` is taken; refused: {rule.asks_for}" for name, rule in NEUTRAL.items()}
    rows |= {name: f"ignored: {why}" for name, why in IGNORED.items()}
    rows |= {name: f"kept: {what}" for name, what in KEPT.items()}
    for name in sorted(rows):
        yield f"| `{name}` | {rows[name]} |"
    yield ""
    yield "A name that is not here is refused as `unknown_parameter`, and a value that is not taken as"
    yield "`unsupported_parameter` or `invalid_value`. A null is taken under every name, as if nothing were sent."


def _neutral(rule: Neutral) -> str:
    return json.dumps(next((value for value in reversed(rule.values) if value is not None), None))


if __name__ == "__main__":
    print("\n".join(table()))
