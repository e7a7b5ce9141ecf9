"""`gsm8k`: hand-made answers, right, wrong and awkward, each with the right verdict."""

import pytest

from streamrl.rewards.verifiers.gsm8k import gsm8k

FLEXIBLE = [
    ("#### 72", "72", 1.0),
    ("####72", "72", 1.0),
    ("so #### 72", "72", 1.0),
    ("#### 1,234", "1234", 1.0),
    ("#### 1234", "1,234", 1.0),
    ("#### $72", "72", 1.0),
    ("#### -5", "-5", 1.0),
    ("#### 72.0", "72", 1.0),
    ("#### 72.", "72", 1.0),
    ("#### 0.5", ".5", 1.0),
    ("#### 5\n#### 72", "72", 1.0),
    ("#### 72 apples", "72", 1.0),
    ("She earns $72 a day.", "72", 1.0),
    ("It is 72", "72", 1.0),
    ("It is 72.", "72", 1.0),
    ("3 + 4 = 7", "7", 1.0),
    ("The total is 1,234,567 people", "1234567", 1.0),
    (r"\boxed{72}", "72", 1.0),
    (r"\boxed{72}, since 3 of 4", "72", 1.0),
    (r"\boxed{1,234}", "1234", 1.0),
    (r"\boxed{\$72}", "72", 1.0),
    (r"\boxed{50\%}", "50", 1.0),
    ("72", "She has 72.\n#### 72", 1.0),
    ("72", "<<8*9=72>>72\n#### 72", 1.0),
    ("1234", "total\n#### 1,234", 1.0),
    ("**72**", "72", 1.0),
    ("72%", "72", 1.0),
    ("-72", "-72", 1.0),
    ("72", 72, 1.0),
    ("72.50", 72.5, 1.0),
    ("the answer:\n\n72\n", "72", 1.0),
    ("0", "0", 1.0),
    ("#### 0", 0, 1.0),
    ("12 and then 72", "72", 1.0),
    ("7 2", "2", 1.0),
    ("#### 73", "72", 0.0),
    ("#### 7.2", "72", 0.0),
    ("#### -72", "72", 0.0),
    ("", "72", 0.0),
    ("I do not know.", "72", 0.0),
    ("seventy-two", "72", 0.0),
    ("#### seventy-two", "72", 0.0),
    ("72 of 100", "72", 0.0),
    ("#### 5, so 72", "72", 0.0),
    (r"\boxed{5}, not 72", "72", 0.0),
    ("720", "72", 0.0),
    ("72000", "72", 0.0),
    ("1.234", "1234", 0.0),
]
STRICT = [
    ("#### 72", "72", 1.0),
    ("reasoning\n#### 72", "72", 1.0),
    ("#### 1,234", "1234", 1.0),
    ("#### 5\n#### 72", "72", 1.0),
    ("#### $72", "72", 1.0),
    ("####72.00", "72", 1.0),
    ("72", "72", 0.0),
    ("It is 72", "72", 0.0),
    (r"\boxed{72}", "72", 0.0),
    ("### 72", "72", 0.0),
    ("#### 71", "72", 0.0),
    ("#### ", "72", 0.0),
    ("", "72", 0.0),
]


@pytest.mark.parametrize(("completion", "answer", "verdict"), FLEXIBLE, ids=str)
def test_flexible(completion: str, answer: object, verdict: float) -> None:
    assert gsm8k(completion, answer=answer) == verdict


@pytest.mark.parametrize(("completion", "answer", "verdict"), STRICT, ids=str)
def test_strict(completion: str, answer: object, verdict: float) -> None:
    assert gsm8k(completion, answer=answer, method="strict") == verdict


def test_there_are_at_least_sixty() -> None:
    assert len(FLEXIBLE) + len(STRICT) >= 60


def test_a_wrong_number_gets_the_score_of_the_form() -> None:
    assert gsm8k("#### 7", answer="72", method="strict", format_score=0.1) == 0.1
    assert gsm8k("7", answer="72", method="strict", format_score=0.1) == 0.0


def test_an_answer_column_without_a_number_is_an_error_and_no_zero() -> None:
    with pytest.raises(ValueError, match="holds no number"):
        gsm8k("#### 7", answer="many")
