"""`multiple_choice`: hand-made answers, right, wrong and awkward, each with the letter that they settle on."""

import pytest

from streamrl.rewards.verifiers.multiple_choice import choice_of, multiple_choice

SETTLED = [
    ("A", "A"),
    ("b", "B"),
    ("(C)", "C"),
    ("D.", "D"),
    ("**A**", "A"),
    (" B \n", "B"),
    ("The answer is B.", "B"),
    ("The answer is: C", "C"),
    ("the answer is (D)", "D"),
    ("The correct answer is option A", "A"),
    ("Answer: (B) 42", "B"),
    ("Answer: B\nBut A is close", "B"),
    ("Final answer: **B**", "B"),
    ("The answer is **B. 5**", "B"),
    ("answer is $D$", "D"),
    ('the answer is "C"', "C"),
    ("choice = B", "B"),
    ("I choose B", "B"),
    ("I would select option (C)", "C"),
    ("I'd go with D", "D"),
    ("A is wrong, so the answer is B.", "B"),
    ("First I thought the answer is A. No: the answer is C.", "C"),
    (r"\boxed{C}", "C"),
    (r"\boxed{\text{C}}", "C"),
    (r"\boxed{\mathrm{D}}", "D"),
    (r"\boxed{(A)}", "A"),
    (r"\boxed{A. 4}", "A"),
    (r"The answer is A... wait, \boxed{B}", "B"),
    ("<answer>C</answer>", "C"),
    ("<answer>(B) Paris</answer>", "B"),
    ("<think>answer is A</think><answer>D</answer>", "D"),
    ("D. 42", "D"),
    ("D) because it is", "D"),
    ("C: the third", "C"),
    ("Let's see.\nC", "C"),
    ("Reasoning here.\n\n(B)\n", "B"),
    ("Reasoning.\n**C**", "C"),
    ("It must be **(A)**.", "A"),
    ("Option A", "A"),
    ("So it's A.", "A"),
    ("Therefore, D.", "D"),
    ("the right one is C", "C"),
    ("The answer is E)", "E"),
]
NOTHING = [
    "",
    "A dog is an animal.",
    "I am not sure",
    "The answer is An apple",
    "The answer is Apple",
    "42",
    "none of these",
    "A or B",
    "Both A and B could be",
    "The answer is not given",
    "answer",
    "I choose Apples",
]
ANSWERS = [
    ("A", "A", 1.0),
    ("A", "(a)", 1.0),
    ("A", " a. ", 1.0),
    ("A", 0, 1.0),
    ("D", "3", 1.0),
    ("B", "C", 0.0),
    ("", "A", 0.0),
    ("E", "A", 0.0),
]


@pytest.mark.parametrize(("completion", "letter"), SETTLED, ids=str)
def test_the_letter_that_a_completion_settles_on(completion: str, letter: str) -> None:
    assert choice_of(completion) == letter


@pytest.mark.parametrize("completion", NOTHING, ids=str)
def test_what_settles_on_none(completion: str) -> None:
    assert choice_of(completion) is None


@pytest.mark.parametrize(("completion", "answer", "verdict"), ANSWERS, ids=str)
def test_answers_are_letters_or_numbers_of_choices(completion: str, answer: object, verdict: float) -> None:
    assert multiple_choice(completion, answer=answer) == verdict


def test_there_are_at_least_sixty() -> None:
    assert len(SETTLED) + len(NOTHING) + len(ANSWERS) >= 60


def test_a_letter_beyond_the_choices_is_none() -> None:
    assert choice_of("The answer is E", choices=4) is None


@pytest.mark.parametrize("answer", ["", "AB", "Paris", "26", None])
def test_an_answer_column_that_is_no_choice_is_an_error_and_no_zero(answer: object) -> None:
    with pytest.raises(ValueError, match="is no letter and no number of a choice"):
        multiple_choice("A", answer=answer)
