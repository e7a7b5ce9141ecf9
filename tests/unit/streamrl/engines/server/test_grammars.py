"""Grammars on their way to a server: in the form of each, never one that it could fail over, and held to afterwards."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from support.engines.bytewise import bytewise
from support.engines.fake_server import token
from support.engines.fake_sglang import fake_sglang
from support.engines.fake_vllm import FakeVllm, fake_engine
from support.engines.sglang_requests import pieces

from streamrl.config.schema.run import ModelConfig
from streamrl.engines.server.grammars import checked
from streamrl.engines.server.http import Http
from streamrl.engines.server.process.private_folder import make_private_folder, remove_private_folder
from streamrl.engines.server.vllm.contract import VllmContract
from streamrl.models.grammars import WHITESPACE, Grammars, with_blanks
from streamrl.models.load import prepare_model_folder
from streamrl.models.tokenizer import TextTokenizer, load_tokenizer
from streamrl.types import (
    FinishReason,
    GenerationRequest,
    GenerationResult,
    Grammar,
    GrammarKind,
    PartialTokens,
    SamplingParams,
    Version,
    VersionSpan,
)

SCHEMA = Grammar(GrammarKind.JSON_SCHEMA, '{"type":"object"}')
SPACED = {"type": "object", "x-guidance": {"whitespace_pattern": WHITESPACE}}
REGEX = Grammar(GrammarKind.REGEX, "1+")
LARK = Grammar(GrammarKind.LARK, 'start: "yes" | "no"')
END = 256


def with_end() -> TextTokenizer:
    """A token for each byte, and an end that is none of them."""
    tokenizer = bytewise()._tokenizer
    tokenizer.add_special_tokens(["<end>"])
    return TextTokenizer(tokenizer, eos_token_ids=(END,))


SAMPLED = with_end().decode(np.array([token(place) for place in range(4)], np.int32))
"""What a fake server says with its first four tokens."""


def request(grammar: Grammar | None, *, name: str = "r", so_far: int = 0, new: int = 4) -> GenerationRequest:
    ids = np.arange(50, 50 + so_far, dtype=np.int32)
    known = PartialTokens(name, 0, ids, np.zeros(so_far, np.float32), (VersionSpan(0, Version(0, 0)),))
    return GenerationRequest(
        name,
        np.array([3, 4], np.int32),
        7,
        SamplingParams(max_new_tokens=new + so_far),
        (END,),
        known if so_far else None,
        grammar=grammar,
    )


@pytest.fixture
def private() -> Iterator[Path]:
    folder = make_private_folder("streamrl-test")
    yield folder
    remove_private_folder(folder)


@pytest.mark.parametrize(
    ("grammar", "sent"),
    [
        (None, None),
        (SCHEMA, {"json": SPACED}),
        (REGEX, {"regex": "1+"}),
        (LARK, {"grammar": LARK.text}),
    ],
)
async def test_vllm_is_sent_a_grammar_in_its_own_form(
    grammar: Grammar | None, sent: dict[str, Any] | None, private: Path
) -> None:
    fake = FakeVllm()
    fake.at_once = True
    contract = VllmContract(Http(socket=private / "socket"))
    with fake.served(private / "socket"):
        async for _ in contract.generate(request(grammar)):
            pass
        await contract.close()
    ((_, body),) = fake.calls
    assert read(body["sampling_params"].get("structured_outputs"), "json") == sent


@pytest.mark.parametrize(
    ("grammar", "sent"),
    [
        (None, {}),
        (SCHEMA, {"json_schema": SPACED}),
        (REGEX, {"regex": "1+"}),
        (LARK, {"ebnf": LARK.text}),
    ],
)
async def test_sglang_is_sent_a_grammar_in_its_own_form(grammar: Grammar | None, sent: dict[str, Any]) -> None:
    async with fake_sglang() as (fake, contract):
        await pieces(contract, request(grammar))
        (body,) = fake.bodies("/generate")
    found = {name: body["sampling_params"].get(name) for name in ("json_schema", "regex", "ebnf", "structural_tag")}
    assert read({name: value for name, value in found.items() if value is not None}, "json_schema") == sent


def read(given: dict[str, Any] | None, schema: str) -> dict[str, Any] | None:
    """With the schema, which is sent as text, as the object that it is."""
    return given if given is None or schema not in given else {**given, schema: msgspec.json.decode(given[schema])}


def answer(grammar: Grammar, grammars: Grammars | None, **more: Any) -> tuple[GenerationResult, int]:
    """What a request comes to, and how many the server got."""
    fake = FakeVllm()
    fake.at_once = True
    with fake_engine(fake, grammars=grammars) as engine:
        engine.submit([request(grammar, **more)])
        results: list[GenerationResult] = []
        while not results:
            results = engine.step()
    return results[0], len(fake.seen)


OVER_BYTES = Grammars(with_end, 500)


@pytest.mark.parametrize(
    ("grammar", "told"),
    [
        (Grammar(GrammarKind.REGEX, "("), "grammar: "),
        (Grammar(GrammarKind.LARK, "start: nothing"), "grammar: "),
        (Grammar(GrammarKind.JSON_SCHEMA, '{"type": "nothing"}'), "grammar: "),
    ],
)
def test_what_is_no_grammar_never_reaches_a_server(grammar: Grammar, told: str) -> None:
    result, sent = answer(grammar, OVER_BYTES)
    assert (result.finish_reason, sent) == (FinishReason.ERROR, 0)
    assert result.error.startswith(told)


def test_a_grammar_over_tokens_that_no_server_reads_is_refused_by_name(tmp_path: Path) -> None:
    prepare_model_folder(ModelConfig(preset="tiny-qwen3"), 0, tmp_path)
    letters = Grammars(lambda: load_tokenizer(tmp_path), 22)
    for grammars, told in ((letters, "no bytes of their own"), (None, "has no tokenizer")):
        result, sent = answer(REGEX, grammars)
        assert (result.finish_reason, sent) == (FinishReason.ERROR, 0)
        assert told in result.error


def test_a_server_is_not_asked_to_go_on_within_a_grammar_that_began_elsewhere() -> None:
    result, sent = answer(REGEX, OVER_BYTES, so_far=2)
    assert (result.finish_reason, sent) == (FinishReason.ERROR, 0)
    assert "sampled elsewhere" in result.error


def test_a_completion_that_left_its_grammar_is_an_error_and_one_that_did_not_is_a_result() -> None:
    kept, _ = answer(Grammar(GrammarKind.LARK, f'start: "{SAMPLED}" /.*/'), OVER_BYTES)
    assert (kept.error, kept.finish_reason, len(kept.token_ids)) == ("", FinishReason.LENGTH, 4)
    left, sent = answer(Grammar(GrammarKind.LARK, f'start: "{SAMPLED[:3]}" "x"'), OVER_BYTES)
    assert (left.finish_reason, len(left.token_ids), left.version_spans, sent) == (FinishReason.ERROR, 0, (), 1)
    assert f"with token 3, which is {token(3)}" in left.error


def test_blanks_beyond_the_bound_are_no_fault_of_a_server() -> None:
    constrained = request(calls := Grammar(GrammarKind.LARK, f"start: %json {with_blanks(SCHEMA.text)}"))
    for grammar in (SCHEMA, calls):
        for blanks, extra, error in ((40, "}", ""), (40, "x", "left the grammar")):
            ids = with_end().encode("{" + " " * blanks + extra, add_special_tokens=False)
            result = GenerationResult("r", ids, np.zeros(len(ids), np.float32), (), FinishReason.LENGTH)
            told = checked(replace(constrained, grammar=grammar), result, OVER_BYTES)
            assert (told.error == "") == (error == "")
            assert error in told.error


def test_the_end_token_is_of_the_grammar_where_its_text_is_whole() -> None:
    fake = FakeVllm()
    whole = replace(request(Grammar(GrammarKind.LARK, f'start: "{SAMPLED[:2]}"')), stop_token_ids=(END, token(2)))
    with fake_engine(fake, grammars=OVER_BYTES) as engine:
        fake.at_once = True
        engine.submit([whole])
        results: list[GenerationResult] = []
        while not results:
            results = engine.step()
    # Its third token ends the request and is none of the grammar.
    assert (results[0].finish_reason, results[0].token_ids.tolist()) == (FinishReason.ERROR, [])
