"""Whether a completion is the answer, or holds it."""

import unicodedata


def exact_match(completion: str, *, answer: object, finish_reason: str) -> float:
    """1.0 when the completion is the answer, character for character, and ended by itself; else 0.0.

    A completion cut off at the length limit never matches: the model has not said that it was done.
    """
    return float(finish_reason == "stop" and completion == str(answer))


def contains(completion: str, *, answer: object) -> float:
    """1.0 when the answer occurs anywhere in the completion; else 0.0."""
    return float(str(answer) in completion)


def exact(completion: str, *, answer: object, ignore_case: bool = True, ignore_punctuation: bool = True) -> float:
    """1.0 when the completion is the answer up to spaces, and, unless told otherwise, up to case and to punctuation at
    its ends. answer: a text or a number, or a list of which any will do."""
    given = _plain(completion, ignore_case, ignore_punctuation)
    wanted = answer if isinstance(answer, list) else [answer]
    return float(any(given == _plain(str(one), ignore_case, ignore_punctuation) for one in wanted))


def _plain(text: str, ignore_case: bool, ignore_punctuation: bool) -> str:
    text = " ".join(unicodedata.normalize("NFKC", text).split())
    if ignore_punctuation:
        text = text.strip(" .,;:!?\"'`*()[]{}")
    return text.casefold() if ignore_case else text
