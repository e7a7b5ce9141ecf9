"""GSM8K: the number behind `####`, or the last number of all.

After verl's `utils/reward_score/gsm8k.py`: `strict` wants the mark, `flexible` takes the last number of the text.
Unlike there, numbers are compared as numbers: 72, 72.0 and $72 are one. The answer may be a number, or GSM8K's own
solution with its `#### 1,234`.
"""

import re
from decimal import Decimal, InvalidOperation
from typing import Literal

MARK = re.compile(r"####\s*\$?\s*(-?[0-9.,]+)")
NUMBER = re.compile(r"-?\$?\d[\d,]*(?:\.\d+)?|-?\$?\.\d+")
_BOXED = re.compile(r"\\boxed\{\s*\\?\$?\s*(-?[0-9.,]+)\s*\\?%?\s*\}")


def gsm8k(
    completion: str, *, answer: object, method: Literal["strict", "flexible"] = "flexible", format_score: float = 0.0
) -> float:
    """1.0 for the right number, `format_score` for a wrong one, 0.0 where there is none.

    method: `strict` looks behind the last `####` alone; `flexible` there, else in the last `\\boxed{}`, else at the
    last number. Raises ValueError for an answer that holds no number."""
    wanted = number_of(str(answer), "flexible")
    if wanted is None:
        raise ValueError(f"the answer {str(answer)[:60]!r} holds no number")
    given = number_of(completion, method)
    if given is None:
        return 0.0
    return 1.0 if given == wanted else format_score


def number_of(text: str, method: Literal["strict", "flexible"]) -> Decimal | None:
    """The number that a text gives as its answer."""
    found = MARK.findall(text)
    if not found and method == "flexible":
        found = _BOXED.findall(text) or NUMBER.findall(text)
    return _decimal(found[-1]) if found else None


def _decimal(text: str) -> Decimal | None:
    try:
        return Decimal(text.replace(",", "").replace("$", "").rstrip("."))
    except InvalidOperation:
        return None
