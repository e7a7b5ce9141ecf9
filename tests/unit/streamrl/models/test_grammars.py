"""Grammars over the tokens of a tokenizer: what may come, what may not, and where a text may end."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.engines.bytewise import BYTEWISE
from support.engines.calling_model import PIECES, write_calling_tokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from streamrl.config.schema.run import ModelConfig
from streamrl.errors import ConfigError
from streamrl.models.grammars import KEPT, MOST_CHARACTERS, BitMask, Constraint, Grammars
from streamrl.models.load import prepare_model_folder
from streamrl.models.tokenizer import TextTokenizer, load_tokenizer
from streamrl.types import Grammar, GrammarKind

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


def regex(text: str) -> Grammar:
    return Grammar(GrammarKind.REGEX, text)


def ids_in(mask: BitMask, vocab_size: int) -> list[int]:
    return [token_id for token_id in range(vocab_size) if mask[token_id // 32] >> (token_id % 32) & 1]


def texts_in(mask: BitMask, tokenizer: TextTokenizer, vocab_size: int) -> set[str]:
    """What may come, an end token as ""."""
    return {tokenizer.decode(np.array([token_id])) for token_id in ids_in(mask, vocab_size)}


@pytest.fixture
def letters(tmp_path: Path) -> TextTokenizer:
    """A token for each letter, and no decoder that llguidance knows."""
    prepare_model_folder(ModelConfig(preset="tiny-qwen3"), 0, tmp_path)
    return load_tokenizer(tmp_path)


def test_a_text_is_allowed_letter_by_letter_and_ends_where_it_is_whole(letters: TextTokenizer) -> None:
    constraint = Grammars(lambda: letters, 40).begin(regex("1[0-2]=?"))
    allowed = []
    for letter in "12=":
        allowed.append(texts_in(constraint.allowed(), letters, 40))
        constraint.take(int(letters.encode(letter, add_special_tokens=False)[0]))
    assert allowed == [{"1"}, {"0", "1", "2"}, {"=", ""}]
    assert ids_in(constraint.allowed(), 40) == list(letters.eos_token_ids)


def test_a_schema_is_followed_over_bytes() -> None:
    grammars = Grammars(lambda: BYTEWISE, 300)
    constraint = grammars.begin(Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA)))
    for token_id in BYTEWISE.encode('{"n":').tolist():
        assert token_id in ids_in(constraint.allowed(), 300)
        constraint.take(token_id)
    assert texts_in(constraint.allowed(), BYTEWISE, 300) <= {*"-0123456789 \t\n\r"}
    assert "7" in texts_in(constraint.allowed(), BYTEWISE, 300)


def test_between_the_parts_of_a_json_text_there_are_blanks_but_not_for_ever() -> None:
    constraint = Grammars(lambda: BYTEWISE, 256).begin(Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA)))
    constraint.take(int(BYTEWISE.encode("{")[0]))
    blanks = 0
    while " " in texts_in(constraint.allowed(), BYTEWISE, 256):
        constraint.take(int(BYTEWISE.encode(" ")[0]))
        blanks += 1
    assert blanks == 16
    assert texts_in(constraint.allowed(), BYTEWISE, 256) == {'"'}


def test_two_completions_of_one_grammar_know_nothing_of_each_other(letters: TextTokenizer) -> None:
    grammars = Grammars(lambda: letters, 22)
    first, second = grammars.begin(regex("12")), grammars.begin(regex("12"))
    first.take(int(letters.encode("1", add_special_tokens=False)[0]))
    assert texts_in(first.allowed(), letters, 22) == {"2"}
    assert texts_in(second.allowed(), letters, 22) == {"1"}


def test_a_token_that_is_not_of_the_grammar_is_refused(letters: TextTokenizer) -> None:
    constraint = Grammars(lambda: letters, 22).begin(regex("12"))
    with pytest.raises(ValueError, match="token"):
        constraint.take(int(letters.encode("2", add_special_tokens=False)[0]))


@pytest.mark.parametrize(
    ("grammar", "told"),
    [
        (regex("(1"), "regex"),
        (Grammar(GrammarKind.LARK, "start: nothing"), "nothing"),
        (Grammar(GrammarKind.JSON_SCHEMA, '{"type": "nothing"}'), "nothing"),
        (Grammar(GrammarKind.JSON_SCHEMA, "{"), "truncated"),
        (Grammar(GrammarKind.JSON_SCHEMA, "[]"), "an object or boolean"),
        (Grammar(GrammarKind.JSON_SCHEMA, '{"items":' * 3000 + "{}" + "}" * 3000), "too deep"),
        (regex("1" * (MOST_CHARACTERS + 1)), f"at most {MOST_CHARACTERS}"),
    ],
)
def test_what_is_no_grammar_says_why(letters: TextTokenizer, grammar: Grammar, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Grammars(lambda: letters, 22).begin(grammar)


def test_a_word_that_holds_what_must_come_may_come(tmp_path: Path) -> None:
    prepare_model_folder(ModelConfig(preset="tiny-qwen3"), 0, tmp_path)
    write_calling_tokenizer(tmp_path)
    words = load_tokenizer(tmp_path)
    constraint = Grammars(lambda: words, 22).begin(regex("<tool_call>.*</tool_call>"))
    assert texts_in(constraint.allowed(), words, 22) == {piece for piece in PIECES if piece.startswith("<tool_call>")}


OBJECT = Grammar(GrammarKind.JSON_SCHEMA, '{"type": "object"}')


@pytest.mark.parametrize("grammar", [regex("1(a|b)"), regex("a1"), OBJECT], ids=str)
def test_what_no_token_goes_on_with_fails_before_the_token(grammar: Grammar, letters: TextTokenizer) -> None:
    with pytest.raises(ValueError, match=r"^no token of the tokenizer goes on with it$"):
        follow(Grammars(lambda: letters, 22).begin(grammar), 40)


def follow(constraint: Constraint, count: int) -> None:
    """By the first token that may come, each time."""
    for _ in range(count):
        constraint.take(ids_in(constraint.allowed(), 22)[0])


def test_the_grammars_used_last_are_kept(letters: TextTokenizer) -> None:
    grammars = Grammars(lambda: letters, 22)
    for number in range(KEPT + 1):
        grammars.begin(regex(f"1{{{number + 1}}}"))
        grammars.begin(regex("1"))
    assert len(grammars._ready) == KEPT
    assert regex("1") in grammars._ready
    assert regex("1{2}") not in grammars._ready


def test_a_tokenizer_whose_tokens_are_not_their_text_is_refused_by_name() -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "[UNK]": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.Replace("a", "A")
    with pytest.raises(ConfigError, match="no grammar can be followed with this tokenizer"):
        Grammars(lambda: TextTokenizer(tokenizer, eos_token_ids=(2,)), 3).begin(regex("a"))
