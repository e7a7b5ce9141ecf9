"""Multiple choice: the letter that a completion settles on."""

import re

_PATTERNS = (
    r"\\boxed\{\s*(?:\\text\{|\\mathrm\{|\\textbf\{)?\s*\(?([A-Z])\)?\s*[.:)]?[^}]{0,200}\}",
    r"<answer>\s*\(?([A-Z])\)?(?![A-Za-z])[^<]{0,400}</answer>",
    r"(?i:answer|choice|option)\s*(?i:is|:|=)\s*:?\s*(?:\*\*|\*|\$|\")?\s*(?i:option\s+|choice\s+)?\(?([A-Z])\)?(?![A-Za-z'])",
    r"(?i:choose|pick|select|chose|go with)\s+(?i:option\s+|choice\s+|answer\s+)?(?:\*\*)?\(?([A-Z])\)?(?![A-Za-z'])",
    r"(?m)^\s*(?:\*\*)?\(?([A-Z])\)?(?:\*\*)?\s*[.:)]?\s*(?:\*\*)?\s*$",
    r"(?:\*\*)\(?([A-Z])\)?[.:)]?(?:\*\*)",
    r"\A\s*\(?([A-Z])[.):](?=\s|$)",
    r"(?i:option|choice)\s+\(?([A-Z])\)?(?![A-Za-z'])",
    r"(?i:'s|is|be|therefore,?|thus,?|so,?|hence,?)\s+\(?([A-Z])\)?[.!]?\s*\Z",
)
"""From what says it most plainly to what hardly does; of the first that is found the last place counts."""


def multiple_choice(completion: str, *, answer: object, choices: int = 26) -> float:
    """1.0 when the letter is the right one; else 0.0. choices: how many letters there are, from A on.

    answer: a letter, in any case and in brackets or not, or the number of the choice from 0. Raises ValueError for
    another one."""
    wanted = _wanted(answer, choices)
    return float(choice_of(completion, choices) == wanted)


def choice_of(completion: str, choices: int = 26) -> str | None:
    """The letter, A to Z; None where none is settled on."""
    last = chr(ord("A") + choices - 1)
    alone = completion.strip().strip("().:*`").upper()
    if len(alone) == 1 and "A" <= alone <= last:
        return alone
    for pattern in _PATTERNS:
        found: list[str] = [letter for letter in re.findall(pattern, completion) if letter <= last]
        if found:
            return found[-1]
    return None


def _wanted(answer: object, choices: int) -> str:
    text = str(answer).strip().strip("().:").upper()
    if re.fullmatch(r"\d+", text) and int(text) < choices:
        return chr(ord("A") + int(text))
    if not re.fullmatch(r"[A-Z]", text):
        raise ValueError(f"the answer {str(answer)[:60]!r} is no letter and no number of a choice")
    return text
