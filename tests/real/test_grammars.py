"""Real servers follow grammars as the torch engine does, and their log-probs are of what a grammar leaves."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from support.engines.bytewise_model import VOCABULARY, write_bytewise_model
from support.engines.real_engines import CLOSE, ENGINES, Kind, Served, served
from support.engines.real_models import furthest

from streamrl.gateway.openai.bodies import ChatRequest
from streamrl.gateway.openai.grammars import calls_grammar
from streamrl.models.grammars import Grammars, unbounded
from streamrl.models.tokenizer import TextTokenizer, load_tokenizer
from streamrl.services.gateway.scoring import score_request
from streamrl.types import (
    FinishReason,
    FloatArray,
    GenerationRequest,
    GenerationResult,
    Grammar,
    GrammarKind,
    PartialTokens,
    SamplingParams,
    VersionSpan,
)

END = VOCABULARY - 1
HEAD_DIM = 64
"""vLLM's attention for CPUs knows none of the bytewise model's own size."""
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "maximum": 999, "minimum": 0}, "yes": {"type": "boolean"}},
    "required": ["n", "yes"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "add", "parameters": SCHEMA}}
GRAMMARS = {
    "json_schema": Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA)),
    "regex": Grammar(GrammarKind.REGEX, r"[a-c]{2,9}/\d{3}"),
    # Tokens that no text is, as marks of calls are.
    "marks": Grammar(GrammarKind.LARK, f"start: <[{END - 1}]> text <[{END - 2}]>\ntext: /[a-c]{{2,5}}/"),
    "choice": Grammar(GrammarKind.LARK, 'start: "yes" | "no ::= \\"" | "perhaps"'),
    "call": calls_grammar(
        ChatRequest(
            model="m",
            messages=[{"role": "user", "content": "1"}],
            tools=[TOOL],
            tool_choice="required",
            parallel_tool_calls=False,
        ),
        "hermes",
        None,
    ),
}
TEXTS = {
    "json_schema": lambda text: {**json.loads(text), "n": 0, "yes": True} == {"n": 0, "yes": True},
    "regex": lambda text: re.fullmatch(r"[a-c]{2,9}/\d{3}", text) is not None,
    "marks": lambda text: re.fullmatch("[a-c]{2,5}", text) is not None,
    "choice": lambda text: text in ("yes", 'no ::= "', "perhaps"),
    "call": lambda text: (
        re.fullmatch(r'<tool_call>\n*\{\s*"name".*"arguments".*\}\n*</tool_call>', text, re.S) is not None
    ),
}


@pytest.fixture(scope="module", params=ENGINES)
def grammatical(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server of a model whose tokens are bytes."""
    kind = Kind(request.param, tied=False)
    if not kind.python.exists():
        pytest.skip(f"needs .venvs/{kind.name}: make engines")
    folder = tmp_path_factory.mktemp(kind.name)
    with served(kind, folder, lambda path, _: write_bytewise_model(path, HEAD_DIM)) as one:
        yield one


@cache
def tokenizer_of(served: Served) -> TextTokenizer:
    return load_tokenizer(served.folder)


def asked(grammar: Grammar | None, count: int = 4, *, new: int = 400, **more: object) -> list[GenerationRequest]:
    sampling = SamplingParams(temperature=0.8, max_new_tokens=new)
    prompts = [np.arange(40 + place, 50 + place, dtype=np.int32) for place in range(count)]
    return [
        GenerationRequest(f"r/{place}", ids, place, sampling, (END,), grammar=grammar, **more)
        for place, ids in enumerate(prompts)
    ]


@pytest.mark.parametrize("name", GRAMMARS)
def test_a_text_follows_its_grammar_and_its_log_probs_are_of_what_that_leaves(name: str, grammatical: Served) -> None:
    grammar = GRAMMARS[name]
    requests = asked(grammar, top_logprobs=5)
    whole = 0
    for result in grammatical.answers(requests):
        request = requests[int(result.request_id.partition("/")[2])]
        assert result.error == ""
        ids = result.token_ids[:-1] if result.finish_reason is FinishReason.STOP else result.token_ids
        text = tokenizer_of(grammatical).decode(ids)
        whole += result.finish_reason is FinishReason.STOP
        assert result.finish_reason is not FinishReason.STOP or TEXTS[name](text), text
        left = under_grammar(grammatical, request, result)
        own = left[np.arange(len(left)), result.token_ids]
        assert furthest(result.logprobs, own) <= CLOSE
        assert_likeliest(result, left)
        free = np.log(np.exp(under_grammar(grammatical, replace(request, grammar=None), result)))
        assert furthest(result.logprobs, free[np.arange(len(free)), result.token_ids]) > 0.1, "the mask changes nothing"
    assert whole, "no text came to its end"


def test_a_text_by_a_grammar_is_scored_as_the_model_itself_would_have_said_it(grammatical: Served) -> None:
    """As the gateway asks for it at the end of a session's turn (`streamrl.services.gateway.scoring`)."""
    requests = asked(GRAMMARS["regex"])
    for result in grammatical.answers(requests):
        request = requests[int(result.request_id.partition("/")[2])]
        row = np.concatenate((request.prompt_ids, result.token_ids))
        (scored,) = grammatical.answers([score_request("s", row)])
        assert scored.prompt is not None
        assert len(scored.prompt.logprobs) == len(row) - 1
        sampling = SamplingParams(temperature=1.0)
        free = under_grammar(grammatical, replace(request, grammar=None, sampling=sampling), result)
        own = free[np.arange(len(free)), result.token_ids]
        assert furthest(scored.prompt.logprobs[len(request.prompt_ids) - 1 :], own) <= CLOSE


def under_grammar(served: Served, request: GenerationRequest, result: GenerationResult) -> FloatArray:
    """float32 [n, vocabulary]: log-probs in the place of each token, by transformers, -inf for what is forbidden."""
    ids = torch.from_numpy(np.concatenate((request.prompt_ids, result.token_ids)).astype(np.int64))
    with torch.inference_mode():
        logits = served.model(ids[None]).logits[0, len(request.prompt_ids) - 1 : -1]
    logits = logits / request.sampling.temperature
    if request.grammar is not None:
        followed = unbounded(request.grammar) if served.name == "vllm" else request.grammar
        constraint = Grammars(lambda: tokenizer_of(served), VOCABULARY).begin(followed)
        for place, token_id in enumerate(result.token_ids.tolist()):
            bits = np.unpackbits(constraint.allowed().view(np.uint8), bitorder="little", count=VOCABULARY)
            logits[place, torch.from_numpy(bits == 0)] = -torch.inf
            constraint.take(token_id)
    return logits.log_softmax(-1).numpy()


def assert_likeliest(result: GenerationResult, left: FloatArray) -> None:
    told = result.top_logprobs
    assert told is not None
    for place, row in enumerate(left):
        best = np.sort(row[np.isfinite(row)])[::-1][:5]
        found = told.logprobs[place][np.isfinite(told.logprobs[place])]
        assert len(found) == len(best), (place, found, best)
        assert furthest(found, best.astype(np.float32)) <= CLOSE


def test_a_request_without_a_grammar_is_free_beside_one_that_has_one(grammatical: Served) -> None:
    bound, free = asked(GRAMMARS["regex"], 1), asked(None, 4, new=30)
    results = grammatical.answers([replace(bound[0], request_id="bound/0"), *free])
    for result in results:
        assert result.error == ""
        if result.request_id != "bound/0":
            request = free[int(result.request_id.partition("/")[2])]
            own = under_grammar(grammatical, request, result)
            assert furthest(result.logprobs, own[np.arange(len(own)), result.token_ids]) <= CLOSE


def test_what_cannot_be_followed_ends_its_request_alone(grammatical: Served) -> None:
    (good,) = asked(GRAMMARS["regex"], 1)
    version = grammatical.engine.version
    so_far = PartialTokens("r/0", 0, np.array([66], np.int32), np.zeros(1, np.float32), (VersionSpan(0, version),))
    bad = {
        "none": replace(good, grammar=Grammar(GrammarKind.REGEX, "(")),
        "behind": replace(good, so_far=so_far),
    }
    sent = [replace(one, request_id=name) for name, one in bad.items()]
    results = {one.request_id: one for one in grammatical.answers([*sent, good])}
    assert results["none"].error.startswith("grammar: ")
    assert "elsewhere" in results["behind"].error
    assert results["r/0"].finish_reason is FinishReason.STOP
