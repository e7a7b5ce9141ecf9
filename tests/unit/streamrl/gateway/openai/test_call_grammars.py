"""Calls that must be made, in each form: what follows the grammar is read as calls of the tools, and nothing else."""

import json
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from support.engines.bytewise import bytewise
from support.faults.fault_scale import SEED
from tokenizers import AddedToken

from streamrl.conversations.formats import deepseek
from streamrl.conversations.formats.choose import CALL_FORMS
from streamrl.conversations.tool_calls import MessageReader
from streamrl.gateway.openai.bodies import ChatRequest, CompletionRequest
from streamrl.gateway.openai.call_grammars import marks_of
from streamrl.gateway.openai.grammars import calls_grammar, grammar_of
from streamrl.gateway.refusal import Refusal
from streamrl.models.grammars import Grammars
from streamrl.models.tokenizer import TextTokenizer
from streamrl.types import Grammar

END = 256
NUMBER = {"type": "integer", "minimum": -99, "maximum": 99}
ADD: dict[str, Any] = {
    "type": "object",
    "properties": {
        "a": NUMBER,
        "unit": {"type": "string", "enum": ["m", "km"]},
        "exact": {"type": "boolean"},
        "more": {"type": "array", "items": {"$ref": "#/$defs/number"}, "maxItems": 2},
    },
    "required": ["a", "unit"],
    "$defs": {"number": NUMBER},
}
SAY = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
SCHEMAS: dict[str, Any] = {"add": ADD, "now": {"type": "object", "properties": {}}}
FIRST = ("add", {"a": 3, "unit": "km"})
SECOND = ("add", {"a": -4, "unit": "m", "exact": True, "more": [1, 2]})
NOW = ("now", dict[str, Any]())


def tagged(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


def coder(name: str, arguments: Mapping[str, Any]) -> str:
    said = "".join(f"<parameter={key}>\n{plain(value)}\n</parameter>\n" for key, value in arguments.items())
    return tagged(f"<function={name}>\n{said}</function>")


def glm(name: str, arguments: Mapping[str, Any]) -> str:
    pairs = [f"<arg_key>{key}</arg_key>\n<arg_value>{plain(one)}</arg_value>\n" for key, one in arguments.items()]
    return f"<tool_call>{name}\n{''.join(pairs)}</tool_call>"


def plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def python(name: str, arguments: Mapping[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={one!r}' for key, one in arguments.items())})".replace("'", '"')


def named(name: str, arguments: Mapping[str, Any], key: str = "arguments") -> str:
    return json.dumps({"name": name, key: arguments})


def section(*calls: str) -> str:
    return f"{deepseek.SECTION}{''.join(calls)}{deepseek.SECTION_END}"


def of_v3(name: str, arguments: Mapping[str, Any]) -> str:
    body = f"function{deepseek.NAME_END}{name}\n```json\n{json.dumps(arguments)}\n```"
    return f"{deepseek.CALL}{body}{deepseek.CALL_END}"


def of_v31(name: str, arguments: Mapping[str, Any]) -> str:
    return f"{deepseek.CALL}{name}{deepseek.NAME_END}{json.dumps(arguments)}{deepseek.CALL_END}"


def harmony(name: str, arguments: Mapping[str, Any]) -> str:
    return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{json.dumps(arguments)}"


WRITTEN = {
    "hermes": lambda *calls: "\n".join(tagged(named(*call)) for call in calls),
    "qwen3_coder": lambda *calls: "\n".join(coder(*call) for call in calls),
    "glm45": lambda *calls: "\n".join(glm(*call) for call in calls),
    "llama3_json": lambda *calls: "; ".join(named(*call, "parameters") for call in calls),
    "pythonic": lambda *calls: f"[{', '.join(python(*call) for call in calls)}]",
    "llama4_pythonic": lambda *calls: f"<|python_start|>[{', '.join(python(*call) for call in calls)}]<|python_end|>",
    "mistral": lambda *calls: "".join(f"[TOOL_CALLS]{name}[ARGS]{json.dumps(one)}" for name, one in calls),
    "deepseek_v3": lambda *calls: section("\n".join(of_v3(*call) for call in calls)),
    "deepseek_v31": lambda *calls: section(*(of_v31(*call) for call in calls)),
    "openai": lambda *calls: "".join(harmony(*call) for call in calls),
}
"""Calls as models of each form write them."""


class Form:
    """A form and a tokenizer. as_tokens: its marks are tokens of the model, else they are spelled."""

    def __init__(self, name: str, as_tokens: bool) -> None:
        self.name, self.as_tokens = name, as_tokens
        marks = CALL_FORMS[name].marks if as_tokens else ()
        inner = bytewise()._tokenizer
        inner.add_special_tokens(["<end>"])
        # Half of published models' marks are special, the other half are not.
        inner.add_tokens([AddedToken(mark, special=place % 2 == 0) for place, mark in enumerate(marks)])
        self.tokenizer = TextTokenizer(inner, eos_token_ids=(END,))
        self.mark = marks_of(self.tokenizer.added_ids(marks))
        self.size = self.tokenizer.vocab_size
        self._grammars = Grammars(lambda: self.tokenizer, self.size)
        self._written = self.tokenizer.special_ids(marks)

    def grammar(self, choice: Any = "required", schemas: Mapping[str, Any] = SCHEMAS, **more: Any) -> Grammar:
        tools = [{"type": "function", "function": {"name": name, "parameters": one}} for name, one in schemas.items()]
        messages = [{"role": "user", "content": "1"}]
        body = ChatRequest(model="run", messages=messages, tools=tools, tool_choice=choice, **more)
        found = calls_grammar(body, self.name, None, self.mark)
        assert found is not None
        return found

    def follows(self, grammar: Grammar, text: str) -> bool:
        constraint = self._grammars.begin(grammar)
        try:
            for token_id in self.tokenizer.encode(text, add_special_tokens=False).tolist():
                constraint.take(token_id)
        except ValueError:
            return False
        return bool(constraint.allowed()[END // 32] >> (END % 32) & 1)

    def drawn(self, grammar: Grammar, chance: random.Random) -> str:
        """A text of the grammar, each token drawn from those that are allowed; the end as soon as it may come."""
        constraint, ids = self._grammars.begin(grammar), list[int]()
        for _ in range(4000):
            bits = np.unpackbits(constraint.allowed().view(np.uint8), bitorder="little", count=self.size)
            allowed = np.flatnonzero(bits).tolist()
            if END in allowed:
                return self.tokenizer.decode(np.array(ids, np.int32), written=self._written or frozenset({-1}))
            ids.append(chance.choice([one for one in allowed if chr(one % 256) not in " \n"] or allowed))
            constraint.take(ids[-1])
        raise AssertionError(f"no end after {len(ids)} tokens")

    def read(self, text: str, schemas: Mapping[str, Any] = SCHEMAS) -> tuple[str, list[tuple[str, Any]]]:
        said = MessageReader("n", schemas, call_form=self.name).parse(0, text, "stop")
        return said.content, [(call.name, json.loads(call.arguments)) for call in said.calls]


@pytest.fixture(params=[True, False], ids=["tokens", "spelled"])
def as_tokens(request: pytest.FixtureRequest) -> bool:
    return request.param


@pytest.fixture(params=WRITTEN)
def form(request: pytest.FixtureRequest, as_tokens: bool) -> Form:
    return Form(request.param, as_tokens)


def test_every_form_that_is_read_can_be_asked_for() -> None:
    assert set(WRITTEN) == set(CALL_FORMS)


def written(form: Form, *calls: tuple[str, Any]) -> str:
    # Older models of Mistral's have no mark before arguments.
    if form.name == "mistral" and not form.as_tokens:
        return f"[TOOL_CALLS][{', '.join(named(*call) for call in calls)}]"
    return WRITTEN[form.name](*calls)


def test_calls_as_models_write_them_follow_the_grammar_and_are_read(form: Form) -> None:
    grammar = form.grammar()
    for calls in ([FIRST], [SECOND], [NOW], [SECOND, NOW, FIRST]):
        if form.name == "openai" and len(calls) > 1:
            continue  # the model ends behind each call
        text = written(form, *calls)
        assert form.follows(grammar, text), text
        assert form.read(text) == ("", calls)


def test_what_is_no_call_of_the_tools_does_not_follow_the_grammar(form: Form) -> None:
    grammar = form.grammar()
    text = written(form, FIRST)
    for wrong in ("", "3", "x" + text, text + "x", text.replace("add", "sub"), text.replace("km", "mm")):
        assert not form.follows(grammar, wrong), wrong
    assert not form.follows(grammar, written(form, ("add", {"a": "xy", "unit": "km"})))
    assert not form.follows(grammar, written(form, ("add", {"a": 3})))
    assert not form.follows(grammar, written(form, ("add", {**FIRST[1], "b": 4})))


def test_one_call_is_made_where_one_tool_is_named_or_calls_are_not_parallel(form: Form) -> None:
    if form.name == "openai":
        pytest.skip("the model ends behind each call")
    for grammar in (
        form.grammar({"type": "function", "function": {"name": "add"}}),
        form.grammar(parallel_tool_calls=False),
    ):
        assert form.follows(grammar, written(form, FIRST))
        assert not form.follows(grammar, written(form, FIRST, SECOND))
    assert not form.follows(form.grammar({"name": "add"}), written(form, NOW))


def test_whatever_follows_the_grammar_is_read_as_calls(form: Form) -> None:
    print(f"SEED={SEED}")
    chance, seen = random.Random(f"{SEED} {form.name}"), set()
    grammar = form.grammar()
    for _ in range(40):
        text = form.drawn(grammar, chance)
        content, calls = form.read(text)
        assert content == "", text
        assert calls, text
        for name, arguments in calls:
            seen.add(name)
            assert set(arguments) <= set(SCHEMAS[name]["properties"]), text
            if name == "add":
                assert -99 <= arguments["a"] <= 99
                assert arguments["unit"] in ("m", "km")
                assert isinstance(arguments.get("exact", True), bool)
                assert all(-99 <= one <= 99 for one in arguments.get("more", []))
    assert seen == {"add", "now"}


@pytest.mark.parametrize("said", ["", "two\nlines", "<b> & 'it' \"is\"", "}]);"])
def test_a_text_may_be_any_text(said: str, form: Form) -> None:
    schemas = {"say": SAY}
    call = ("say", {"text": said})
    text = written(form, call)
    if "pythonic" in form.name:
        text = text.replace(python(*call), f"say(text={json.dumps(said)})")
    assert form.follows(form.grammar(schemas=schemas), text), text
    assert form.read(text, schemas) == ("", [call])


def test_arguments_that_need_not_be_there_are_written_or_left_out(form: Form) -> None:
    schemas = {"add": {key: value for key, value in ADD.items() if key != "required"}}
    grammar = form.grammar(schemas=schemas)
    for arguments in ({}, {"a": 1}, {"exact": False}, {"unit": "m", "more": []}, SECOND[1]):
        text = written(form, ("add", arguments))
        assert form.follows(grammar, text), text
        assert form.read(text, schemas) == ("", [("add", arguments)])


def test_escapes_that_python_reads_otherwise_than_json_are_not_written_as_python() -> None:
    form = Form("pythonic", False)
    grammar = form.grammar(schemas={"say": SAY})
    for said, follows in ((r"\n\"", True), (r"\ud83d\ude00", False), (r"\/", False), ("\N{GRINNING FACE}", True)):
        assert form.follows(grammar, f'[say(text="{said}")]') is follows, said


@pytest.mark.parametrize("thinks", [True, False])
def test_thoughts_end_with_the_token_that_the_model_has_for_their_end(thinks: bool) -> None:
    inner = bytewise()._tokenizer
    inner.add_special_tokens(["<end>"])
    inner.add_tokens(["<think>", "</think>"])
    tokenizer = TextTokenizer(inner, eos_token_ids=(END,))
    grammar = grammar_of(
        CompletionRequest(model="run", prompt="1", regex="ab"), thinks, marks_of({"<think>": 257, "</think>": 258})
    )
    begin = [] if thinks else [257]
    for ids, whole in (
        ([*begin, *tokenizer.encode("so, 1 < 2", add_special_tokens=False), 258], True),
        ([*begin, 258], True),
        (begin, not thinks and not begin),
        ([*begin, 257, 258], False),
    ):
        constraint = Grammars(lambda: tokenizer, 259).begin(grammar)
        try:
            for token_id in (*ids, *tokenizer.encode("ab", add_special_tokens=False)):
                constraint.take(int(token_id))
            followed = bool(constraint.allowed()[END // 32] >> (END % 32) & 1)
        except ValueError:
            followed = False
        assert followed is whole, ids


@pytest.mark.parametrize("name", ["a b", "a>b", "ä"])
def test_a_name_that_cannot_be_written_is_refused_by_name(name: str, form: Form) -> None:
    if form.name in ("hermes", "llama3_json"):
        assert form.grammar(schemas={name: SAY}).text
        return
    with pytest.raises(Refusal, match="cannot be written") as refusal:
        form.grammar(schemas={name: SAY})
    assert (refusal.value.code, refusal.value.param) == ("unsupported_parameter", "tool_choice")
