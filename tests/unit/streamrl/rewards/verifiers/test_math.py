"""`math`: hand-made answers, right, wrong and awkward, each with the right verdict."""

import threading

import pytest

from streamrl.rewards.verifiers.math import MOST_KEPT, _verdict, math

RIGHT = [
    ("42", "42"),
    ("42", "The answer is 42."),
    ("42", r"\boxed{42}"),
    ("42", r"$\boxed{42}$ apples"),
    ("1/2", "0.5"),
    (r"\frac{1}{2}", "1/2"),
    (r"\frac12", r"\boxed{\frac{2}{4}}"),
    ("0.5", r"50\%"),
    (r"50\%", "0.5"),
    ("50%", r"\boxed{50\%}"),
    (r"5 \text{ cm}", r"\boxed{5}"),
    ("5", r"\boxed{5\text{ cm}}"),
    ("5", "5 meters"),
    ("(1,2)", r"\boxed{(1,2)}"),
    ("(1,2]", r"\boxed{(1,2]}"),
    (r"[0,\infty)", r"\boxed{[0,\infty)}"),
    (r"\{1,2\}", r"\boxed{\{2,1\}}"),
    ("1,2", r"\boxed{2, 1}"),
    ("x^2+1", r"\boxed{1+x^2}"),
    ("x=3", r"\boxed{3}"),
    ("3", r"\boxed{x=3}"),
    (r"2\sqrt{3}", r"\boxed{\sqrt{12}}"),
    (r"\pi/4", r"\boxed{\frac{\pi}{4}}"),
    ("1,234", "The total is $1,234$"),
    ("1234", r"\boxed{1,234}"),
    ("#### 1,234", "#### 1234"),
    ("She has 5.\n#### 18", "so #### 18"),
    ("-3", r"\boxed{-3}"),
    ("10^{6}", r"\boxed{1000000}"),
    ("1.5e3", "1500"),
    ("1500", r"\boxed{1.5e3}"),
    (r"\text{east}", r"\boxed{\text{east}}"),
    (r"\text{(A)}", r"\boxed{A}"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\boxed{\begin{pmatrix}1\\2\end{pmatrix}}"),
    ("7", r"<think>maybe \boxed{8}</think> it is \boxed{7}"),
    ("7", r"\boxed{5} no, \boxed{7}"),
    ("7", r"The answer is \boxed{7}. Thank you for reading, 9 people."),
    (r"90^\circ", r"\boxed{90}"),
    ("90", r"\boxed{90^{\circ}}"),
    (r"\$5", r"\boxed{5}"),
    ("5", r"\$5"),
    (r"3\frac{1}{2}", r"\boxed{\frac{7}{2}}"),
    ("i", r"\boxed{i}"),
    ("1+2i", r"\boxed{2i+1}"),
    (r"x \geq 2", r"\boxed{[2,\infty)}"),
    ("2^{10}", "1024"),
    (r"\frac{\sqrt2}{2}", r"\boxed{\frac{1}{\sqrt{2}}}"),
    ("6", "**6**"),
    ("6", "Answer: 6"),
    (r"\log_2 8", "3"),
    ("(x+1)^2", r"\boxed{x^2+2x+1}"),
    ("y=2x+1", r"\boxed{y = 2x + 1}"),
    ("y=2x+1", r"\boxed{2x-y+1=0}"),
    (["4", "5"], r"\boxed{5}"),
    (42, r"\boxed{42}"),
    (0.25, r"\boxed{\frac{1}{4}}"),
]
WRONG = [
    ("42", "43"),
    ("42", ""),
    ("42", "I do not know"),
    ("(1,2)", r"\boxed{(1,3)}"),
    (r"\{1,2,3\}", r"\boxed{\{1,2\}}"),
    ("3", r"\boxed{-3}"),
    (r"\text{east}", r"\boxed{\text{west}}"),
    ("8", r"<think>maybe \boxed{8}</think> it is \boxed{7}"),
    ("5", r"\boxed{5} no, \boxed{7}"),
    ("0.333", r"\boxed{\frac13}"),
    (r"\frac{1}{3}", r"\boxed{0.333}"),
    ("11", r"\boxed{11"),
    ("(1,2]", r"\boxed{(1,2)}"),
    (["4", "5"], r"\boxed{6}"),
    ("x^2+1", r"\boxed{x^2-1}"),
    ("42", "4 2"),
    ("1234", r"\boxed{1.234}"),
    (r"2\sqrt{3}", r"\boxed{3\sqrt{2}}"),
]


@pytest.mark.parametrize(("answer", "completion"), RIGHT, ids=str)
def test_a_right_answer(answer: object, completion: str) -> None:
    assert math(completion, answer=answer) == 1.0


@pytest.mark.parametrize(("answer", "completion"), WRONG, ids=str)
def test_a_wrong_answer(answer: object, completion: str) -> None:
    assert math(completion, answer=answer) == 0.0


def test_there_are_at_least_sixty() -> None:
    assert len(RIGHT) + len(WRONG) >= 60


def test_an_answer_column_without_an_expression_is_an_error_and_no_zero() -> None:
    with pytest.raises(ValueError, match="holds no expression; is it the right column"):
        math(r"\boxed{1}", answer="")


def test_it_works_in_a_thread_where_no_signal_can_be_set() -> None:
    verdicts: list[float] = []
    thread = threading.Thread(target=lambda: verdicts.append(math(r"\boxed{\frac12}", answer="0.5")))
    thread.start()
    thread.join()
    assert verdicts == [1.0]


def test_an_answer_that_is_said_again_is_compared_once_and_a_long_one_is_not_kept() -> None:
    before = _verdict.cache_info()
    for completion in ("so \\boxed{x^2 + 17}", "hence \\boxed{x^2 + 17}", "no, \\boxed{x^2 + 18}"):
        assert math(completion, answer="17 + x^2") == float("17" in completion)
    after = _verdict.cache_info()
    assert (after.hits - before.hits, after.misses - before.misses) == (1, 2)
    assert math(f"\\boxed{{{'1 + ' * MOST_KEPT}x}}", answer=f"{MOST_KEPT} + x") == 1.0
    assert _verdict.cache_info() == after
