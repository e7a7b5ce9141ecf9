"""Which tokens may come next, where the text of a completion follows a grammar. By llguidance.

Guarantees: what is allowed can be completed to a text of the grammar, and an end token is allowed where it is one; a
token that the tokenizer does not know is never allowed. It knows no logits.
"""

from collections import OrderedDict
from collections.abc import Callable
from functools import cached_property
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from streamrl.errors import ConfigError
from streamrl.models.tokenizer import TextTokenizer
from streamrl.types import Grammar, GrammarKind

KEPT: Final = 64
"""Grammars that are kept as they were made ready: agents send the same ones again and again."""
MOST_CHARACTERS: Final = 2**16
"""Of a grammar."""
MOST_TOLD: Final = 500
"""Characters of an error."""
BitMask = npt.NDArray[np.uint32]
"""[vocab / 32, rounded up]: bit i % 32 of number i // 32 says whether token i may come."""


class Constraint:
    """Of one completion, token by token.

    Example:
        constraint = grammars.begin(grammar)
        allowed = constraint.allowed()      # before each token
        constraint.take(token_id)           # the one that was drawn
    """

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def allowed(self) -> BitMask:
        """The tokens that may come next. Raises ValueError where the grammar has become too large to go on with."""
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint32)
        if self._matcher.is_error():
            raise ValueError(_why(self._matcher))
        return mask

    def take(self, token_id: int) -> None:
        """The token that came. Raises ValueError for one that was not allowed."""
        if not self._matcher.consume_token(token_id):
            raise ValueError(_why(self._matcher) or f"token {token_id} is not of the grammar here")


def _why(matcher: LLMatcher) -> str:
    """What its error says, without the state of the parser that it shows behind."""
    told: str = matcher.get_error()
    if told.startswith("NoExtension"):
        return "no token of the tokenizer goes on with it"
    return told.partition("\n<state>")[0].strip()[:MOST_TOLD]


def fault_of(grammar: Grammar) -> str:
    """Why it is none, whatever the tokens; "" where it is one."""
    count = len(grammar.text)
    if count > MOST_CHARACTERS:
        return f"it has {count} characters; at most {MOST_CHARACTERS}"
    try:
        return str(LLMatcher.validate_grammar(_SOURCES[grammar.kind](grammar.text))).strip()
    except ValueError as error:
        return str(error)


class Grammars:
    """Grammars over the tokens of one tokenizer.

    tokenizer: gives it. It is read with the first grammar: a large vocabulary takes a second, and most runs have none.
    vocab_size: of the model, whose last tokens the tokenizer may not know.
    """

    def __init__(self, tokenizer: Callable[[], TextTokenizer], vocab_size: int) -> None:
        self._given, self._vocab_size = tokenizer, vocab_size
        self._ready: OrderedDict[Grammar, LLMatcher] = OrderedDict()

    @cached_property
    def _tokens(self) -> tuple[LLTokenizer, bool]:
        return _read(self._given(), self._vocab_size)

    @property
    def of_bytes(self) -> bool:
        """Whether its tokens have bytes of their own, as those of published models do. Raises ConfigError."""
        return not self._tokens[1]

    def begin(self, grammar: Grammar) -> Constraint:
        """A completion of it. Raises ValueError that says what is wrong with the grammar, and ConfigError for a
        tokenizer whose tokens have no bytes of their own."""
        ready = self._ready.pop(grammar, None) or self._made_ready(grammar)
        self._ready[grammar] = ready
        if len(self._ready) > KEPT:
            self._ready.popitem(last=False)
        return Constraint(ready.deep_copy())

    def _made_ready(self, grammar: Grammar) -> LLMatcher:
        if fault := fault_of(grammar):
            raise ValueError(fault)
        tokenizer, plain = self._tokens
        source = _SOURCES[grammar.kind](grammar.text)
        matcher = LLMatcher(tokenizer, _any_tokens(grammar) if plain else source, log_level=0)
        if matcher.is_error():
            raise ValueError(_why(matcher))
        return matcher


WHITESPACE: Final = r"[\x20\x0A\x0D\x09]{1,16}"
"""Between the parts of a JSON text. Without a bound a model that has found into blanks does not find out of them."""
_ANY_WHITESPACE: Final = r"[\x20\x0A\x0D\x09]+"


def as_lark(grammar: Grammar, name: str = "start") -> str:
    """The same as a rule of this name of a Lark grammar, with what it needs behind it. Of one without a fault."""
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            return f"{name}: %json {with_blanks(grammar.text)}"
        case GrammarKind.REGEX:
            return f"{name}: /{grammar.text.replace('/', chr(92) + '/')}/"
        case GrammarKind.LARK:
            return name + grammar.text.removeprefix("start")


def unbounded(grammar: Grammar) -> Grammar:
    """The same with any number of blanks between the parts of a JSON text: llguidance 1.7, which vLLM has, bounds none.

    Raises ValueError as `with_blanks`."""
    if grammar.kind is GrammarKind.JSON_SCHEMA:
        return Grammar(grammar.kind, with_blanks(grammar.text, _ANY_WHITESPACE))
    ours, any_of_them = (msgspec.json.encode(one).decode() for one in (WHITESPACE, _ANY_WHITESPACE))
    return Grammar(grammar.kind, grammar.text.replace(ours, any_of_them))


def with_blanks(text: str, pattern: str = WHITESPACE) -> str:
    """A schema that says which blanks there may be. What it says itself in `x-guidance` comes before that.

    Raises ValueError for a text that is no JSON, or that is nested too deep to be read.
    """
    try:
        schema = msgspec.json.decode(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep to be read") from error
    given = schema.get("x-guidance", {}) if isinstance(schema, dict) else None
    if isinstance(given, dict) and "whitespace_flexible" not in given:
        schema = {**schema, "x-guidance": {"whitespace_pattern": pattern, **given}}
    return msgspec.json.encode(schema).decode()


def _any_tokens(grammar: Grammar) -> str:
    """The same, whichever of its tokens a text is written in. Otherwise one that must come is written in those that the
    tokenizer gives for it, and a vocabulary of whole words has none for a part of one."""
    return f'%llguidance {{"no_forcing": true}}\n{as_lark(grammar)}'


_SOURCES: Final = {
    GrammarKind.JSON_SCHEMA: lambda text: LLMatcher.grammar_from_json_schema(with_blanks(text)),
    GrammarKind.REGEX: LLMatcher.grammar_from_regex,
    GrammarKind.LARK: LLMatcher.grammar_from_lark,
}


class _PlainTokens:
    """A vocabulary whose tokens are the text that they stand for, as llguidance reads one."""

    def __init__(self, tokenizer: TextTokenizer, vocab_size: int) -> None:
        known = {token_id: token for token, token_id in tokenizer.vocabulary().items()}
        self.eos_token_id = tokenizer.eos_token_ids[0]
        self.bos_token_id = tokenizer.bos_token_id
        self.special_token_ids = sorted(tokenizer.special_token_ids)
        self.tokens = [known.get(token_id, "").encode() for token_id in range(vocab_size)]
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        found: list[int] = self._tokenizer.encode(text, add_special_tokens=False).tolist()
        return found


def _read(tokenizer: TextTokenizer, vocab_size: int) -> tuple[LLTokenizer, bool]:
    """And whether its tokens are the text that they stand for. Raises ConfigError for a tokenizer whose tokens have no
    bytes of their own."""
    ends = list(tokenizer.eos_token_ids)
    try:
        return LLTokenizer(tokenizer.as_json(), n_vocab=vocab_size, eos_token=ends), False
    except ValueError as error:
        # It knows the decoders of published models; that of a vocabulary of letters needs none.
        if not tokenizer.is_plain():
            raise ConfigError(f"no grammar can be followed with this tokenizer: {error}") from error
    plain = TokenizerWrapper(_PlainTokens(tokenizer, vocab_size))
    return LLTokenizer(plain, n_vocab=vocab_size, eos_token=ends), True
