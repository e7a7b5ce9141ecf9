"""`exact`, `exact_match`, `contains`: answers, right, wrong and awkward, each with the right verdict; and none."""

import pytest

from streamrl.rewards.verifiers.exact import contains, exact, exact_match

RIGHT = [
    ("Paris", "Paris"),
    ("paris", "Paris"),
    ("PARIS", "Paris"),
    ("Paris.", "Paris"),
    (" Paris ", "Paris"),
    ("\nParis\n", "Paris"),
    ("Paris!", "Paris"),
    ('"Paris"', "Paris"),
    ("**Paris**", "Paris"),
    ("`Paris`", "Paris"),
    ("(Paris)", "Paris"),
    ("Paris", "Paris."),
    ("New  York", "New York"),
    ("New\nYork", "New York"),
    ("New\tYork", "new york"),
    ("42", 42),
    ("42", "42"),
    ("42.", 42),
    ("0.5", 0.5),
    ("72", 72.0),
    ("72.0", 72.0),
    ("-3", -3),
    ("True", True),
    ("true", True),
    ("Straße", "STRASSE"),
    ("caf\u00e9", "cafe\u0301"),
    ("\uff21\uff22", "AB"),
    ("\ufb01ne", "fine"),
    ("yes", ["no", "yes"]),
    ("Yes.", ["yes", "y"]),
    ("y", ["yes", "y"]),
    ("", ""),
    ("...", ""),
    ("a-b", "a-b"),
    ("don't", "don't"),
    ("\u4f60\u597d", "\u4f60\u597d"),
    ("3:2", "3:2"),
    ("[1, 2]", "1, 2"),
]
WRONG = [
    ("Paris is it", "Paris"),
    ("It is Paris", "Paris"),
    ("Pari", "Paris"),
    ("Pariss", "Paris"),
    ("London", "Paris"),
    ("", "Paris"),
    ("42.0", 42),
    ("72", 72.5),
    ("4 2", "42"),
    ("-42", "42"),
    ("+42", "42"),
    ("a b", "ab"),
    ("a-b", "a b"),
    ("dont", "don't"),
    ("cafe", "caf\u00e9"),
    ("no", ["yes", "y"]),
    ("yes", []),
    ("None", "none of these"),
    ("1,234", "1234"),
    ("Paris, France", "Paris"),
    ("\\boxed{42}", "42"),
    ("$42$", "42"),
    ("50%", "50"),
    ("#### 42", "42"),
    ("<answer>42</answer>", "42"),
    ("\u041f\u0430\u0440\u0438\u0436", "Paris"),
]


@pytest.mark.parametrize(("completion", "answer"), RIGHT, ids=str)
def test_a_right_answer(completion: str, answer: object) -> None:
    assert exact(completion, answer=answer) == 1.0


@pytest.mark.parametrize(("completion", "answer"), WRONG, ids=str)
def test_a_wrong_answer(completion: str, answer: object) -> None:
    assert exact(completion, answer=answer) == 0.0


def test_there_are_at_least_sixty() -> None:
    assert len(RIGHT) + len(WRONG) >= 60


def test_case_and_punctuation_count_where_one_says_so() -> None:
    assert exact("paris", answer="Paris", ignore_case=False) == 0.0
    assert exact("Paris.", answer="Paris", ignore_punctuation=False) == 0.0
    assert exact(" Paris ", answer="Paris", ignore_case=False, ignore_punctuation=False) == 1.0


def test_a_whole_number_that_a_table_keeps_as_a_float_and_a_list_of_answers_are_answers_of_all_three() -> None:
    """Of a column with one empty cell pandas makes 72.0 of 72: every completion was wrong then."""
    for answer in (72.0, "72", [71, 72], ["72.0", 72.0]):
        assert exact_match("72", answer=answer, finish_reason="stop") == 1.0
        assert exact_match("73", answer=answer, finish_reason="stop") == 0.0
        assert contains("it is 72", answer=answer) == 1.0
        assert contains("it is 7", answer=answer) == 0.0


def test_a_row_without_an_answer_is_a_failure_and_no_wrong_completion() -> None:
    for answer in (None, ["yes", None]):
        with pytest.raises(ValueError, match="the answer is null: the row has none"):
            exact("None", answer=answer)
        with pytest.raises(ValueError, match="the answer is null"):
            exact_match("None", answer=answer, finish_reason="stop")
        with pytest.raises(ValueError, match="the answer is null"):
            contains("None", answer=answer)
    with pytest.raises(ValueError, match="the answer is empty, and every completion contains it"):
        contains("anything", answer="")
