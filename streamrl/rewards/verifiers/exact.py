"""Whether a completion is the answer, or holds it.

An answer is a text or a number, or a list of which any will do. A whole number that a table keeps as 72.0, because one
cell of its column is empty, is 72, too. Raises ValueError where a row has no answer: no completion is wrong by that.
"""

import unicodedata


def exact_match(completion: str, *, answer: object, finish_reason: str) -> float:
    """1.0 when the completion is the answer, character for character, and ended by itself; else 0.0.

    A completion cut off at the length limit never matches: the model has not said that it was done.
    """
    return float(completion in _texts(answer) and finish_reason == "stop")


def contains(completion: str, *, answer: object) -> float:
    """1.0 when the answer occurs anywhere in the completion; else 0.0."""
    texts = _texts(answer)
    if "" in texts:
        raise ValueError("the answer is empty, and every completion contains it")
    return float(any(text in completion for text in texts))


def exact(completion: str, *, answer: object, ignore_case: bool = True, ignore_punctuation: bool = True) -> float:
    """1.0 when the completion is the answer up to spaces, and, unless told otherwise, up to case and to punctuation at
    its ends."""
    given = _plain(completion, ignore_case, ignore_punctuation)
    return float(any(given == _plain(one, ignore_case, ignore_punctuation) for one in _texts(answer)))


def _texts(answer: object) -> list[str]:
    """The completions that are the answer."""
    found = []
    for one in answer if isinstance(answer, list) else [answer]:
        if one is None:
            raise ValueError("the answer is null: the row has none")
        found.append(str(one))
        if isinstance(one, float) and one.is_integer():
            found.append(str(int(one)))
    return found


def _plain(text: str, ignore_case: bool, ignore_punctuation: bool) -> str:
    text = " ".join(unicodedata.normalize("NFKC", text).split())
    if ignore_punctuation:
        text = text.strip(" .,;:!?\"'`*()[]{}")
    return text.casefold() if ignore_case else text
