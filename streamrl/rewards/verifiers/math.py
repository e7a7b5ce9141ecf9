"""Mathematics: whether a completion's last answer is equal to the right one, by `math-verify` (extra `math`).

It parses LaTeX and plain expressions and compares what they mean: fractions, percent, units, sets, intervals,
equations, matrices. Its own time limits are by signals, which a thread cannot have, so they are off: the pool's limit
ends a comparison that hangs.
"""

import logging
import re
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any

from streamrl.errors import ConfigError
from streamrl.rewards.verifiers.boxed import last_boxed

_THINKING = re.compile(r"(?s)^.*</think>")
_GSM8K = re.compile(r"####\s*(.+?)\s*$", re.DOTALL)
_LATEX = re.compile(r"\\[a-zA-Z%]+|[$^_{}]")
_SCIENTIFIC = re.compile(r"-?\d{1,15}(\.\d{1,15})?[eE][+-]?\d{1,3}")
_PLAIN = re.compile(
    r"(?:\$|\\boxed\{)\s*(?P<sign>-?)\s*(?:(?P<whole>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d{1,30}(?:\.\d{1,30})?)"
    r"|\\d?frac\{(?P<above>\d{1,30})\}\{(?P<below>\d{1,30})\}|(?P<left>\d{1,30})/(?P<right>\d{1,30}))\s*[$}]"
)
MOST_KEPT = 200
"""Characters of an answer whose verdict is kept."""
LONGEST = 20_000
"""Characters at the end of a completion that are looked at: an answer is there."""


def math(completion: str, *, answer: object) -> float:
    """1.0 when the completion's answer is equal to `answer`; else 0.0.

    The last `\\boxed{}` counts, else the last expression in LaTeX or as plain text; what a model thinks before
    `</think>` does not. answer: a number or a text, LaTeX with or without `$` or `\\boxed{}`, GSM8K's `#### 1,234`, or
    a list of which any will do. Raises ValueError for an answer in which there is no expression."""
    wanted = answer if isinstance(answer, list) else [answer]
    said, texts = _answer_of(completion), [str(one).strip() for one in wanted]
    number, numbers = _number(said), [_number(_as_latex(text)) for text in texts]
    if number is not None and None not in numbers:
        return float(number in numbers)  # two plain numbers: most answers, and a hundred times as fast
    return _verdict(said, tuple(texts)) if len(said) <= MOST_KEPT else _compared(said, tuple(texts))


def _compared(said: str, texts: tuple[str, ...]) -> float:
    golds = [_parsed(text) for text in texts]
    parse, verify = _library()
    given = parse(said, parsing_timeout=None)
    return float(bool(given) and any(verify(list(gold), given, timeout_seconds=None) for gold in golds))


@lru_cache(16_384)
def _verdict(said: str, texts: tuple[str, ...]) -> float:
    """As `_compared`. The completions of a group say few different answers, and SymPy takes milliseconds for each."""
    return _compared(said, texts)


@lru_cache(4096)
def _parsed(text: str) -> tuple[Any, ...]:
    """What a right answer means: each is compared with all completions of its group."""
    parse, _ = _library()
    gold = parse(_as_latex(text), parsing_timeout=None) or parse(text, parsing_timeout=None)
    if not gold:
        raise ValueError(f"the answer {text[:60]!r} holds no expression; is it the right column?")
    return tuple(gold)


def _as_latex(text: str) -> str:
    """An answer in the form in which the library reads it as one whole expression."""
    marked = _GSM8K.search(text)
    text = _plain_number(marked.group(1).replace(",", "") if marked else text)
    if "$" in text or "\\boxed" in text or "\\(" in text or "\\[" in text:
        return text
    return f"${text}$"


def _answer_of(completion: str) -> str:
    """The part of a completion that says its answer, in the form that the library reads."""
    part = _THINKING.sub("", completion) if "</think>" in completion else completion
    part = part[-LONGEST:].replace("\\$", "")
    boxed = last_boxed(part)
    if boxed is not None:
        return f"\\boxed{{{_plain_number(boxed)}}}"
    marked = _GSM8K.search(part)
    if marked:
        return f"${marked.group(1).replace(',', '')}$"
    # An answer that is nothing but an expression, as `3/4`, is one without any mark.
    text = _plain_number(part.strip())
    return f"${text}$" if _is_bare(text) else part


def _is_bare(text: str) -> bool:
    """Whether a completion is nothing but one expression in LaTeX."""
    return "$" not in text and "\n" not in text and len(text) < 200 and _LATEX.search(text) is not None


def _number(text: str) -> Fraction | None:
    """The number that is all of a text in `$` or in a box; None for anything else, percent among it."""
    found = _PLAIN.fullmatch(text)
    if found is None:
        return None
    sign = -1 if found["sign"] else 1
    if found["whole"] is not None:
        return sign * Fraction(found["whole"].replace(",", ""))
    above, below = found["above"] or found["left"], found["below"] or found["right"]
    return sign * Fraction(int(above), int(below)) if int(below) else None


def _plain_number(text: str) -> str:
    """`1.5e3` as 1500, which LaTeX would read as a product; anything else as it is, but for the sign of dollars."""
    text = text.replace("\\$", "").strip()
    return f"{Decimal(text):f}" if _SCIENTIFIC.fullmatch(text) else text


def _library() -> tuple[Any, Any]:
    try:
        from math_verify import parse, verify  # here: few need it, and it takes a third of a second
    except ImportError as error:
        raise ConfigError(
            "reward math needs the package math-verify: pip install 'math-verify[antlr4_13_2]' (the extra math)"
        ) from error
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns of its time limits at each call
    return parse, verify
