"""`format`: hand-made answers, right, wrong and awkward, under the usual forms."""

import pytest

from streamrl.rewards.verifiers.format import format_match

R1 = [
    ("<think>a</think><answer>b</answer>", 1.0),
    ("<think>a</think>\n<answer>b</answer>", 1.0),
    ("<think>a</think>\n\n  <answer>b</answer>\n", 1.0),
    ("<think>a\nb\nc</think><answer>d\ne</answer>", 1.0),
    ("<think></think><answer></answer>", 1.0),
    ("<think>a < b > c</think><answer>1 < 2</answer>", 1.0),
    ("<think>\\boxed{1}</think><answer>\\boxed{2}</answer>", 1.0),
    ("<think>\u00e9\U0001f600</think><answer>\u4f60</answer>", 1.0),
    ("<think>" + "long " * 5000 + "</think><answer>b</answer>", 1.0),
    ("<think>a</think><answer>b</answer> ", 1.0),
    ("<think>/answer</think><answer>b</answer>", 1.0),
    ("", 0.0),
    ("a", 0.0),
    ("<answer>b</answer>", 0.0),
    ("<think>a</think>", 0.0),
    ("<think>a</think>b", 0.0),
    ("<think>a</think><answer>b", 0.0),
    ("<think>a<answer>b</answer>", 0.0),
    ("a<think>a</think><answer>b</answer>", 0.0),
    (" <think>a</think><answer>b</answer>", 0.0),
    ("<think>a</think><answer>b</answer>c", 0.0),
    ("<think>a</think>c<answer>b</answer>", 0.0),
    ("<answer>b</answer><think>a</think>", 0.0),
    ("<think>a</think><think>a</think><answer>b</answer>", 0.0),
    ("<think>a</think><answer>b</answer><answer>c</answer>", 0.0),
    ("<THINK>a</THINK><ANSWER>b</ANSWER>", 0.0),
    ("<think>a<think>b</think><answer>c</answer>", 0.0),
    ("< think>a</think><answer>b</answer>", 0.0),
    ("<think>a</think><answer>b</anwser>", 0.0),
    ("&lt;think&gt;a&lt;/think&gt;<answer>b</answer>", 0.0),
]
PATTERNS = [
    (r"\d+", "42", 1.0),
    (r"\d+", "42 ", 0.0),
    (r"\d+", "a42", 0.0),
    (r"\d+", "", 0.0),
    (r"-?\d+(\.\d+)?", "-4.5", 1.0),
    (r"-?\d+(\.\d+)?", "-4.", 0.0),
    (r"(?s).*#### -?\d+", "a\nb\n#### 42", 1.0),
    (r"(?s).*#### -?\d+", "a\n### 42", 0.0),
    (r"[A-D]", "C", 1.0),
    (r"[A-D]", "E", 0.0),
    (r"[A-D]", "AB", 0.0),
    (r"(?i)yes|no", "YES", 1.0),
    (r"(?i)yes|no", "maybe", 0.0),
    (r"\{.*\}", '{"a": 1}', 1.0),
    (r"\{.*\}", '{"a": 1', 0.0),
    (r"(?s)```python\n.*\n```", "```python\nx = 1\n```", 1.0),
    (r"(?s)```python\n.*\n```", "```\nx = 1\n```", 0.0),
    (r"\p{Lu}\p{Ll}+", "\u00c9mile", 1.0),
    (r"\p{Lu}\p{Ll}+", "\u00e9mile", 0.0),
    (r".{0,10}", "0123456789", 1.0),
    (r".{0,10}", "0123456789a", 0.0),
    (r"(\w+) \1", "ha ha", 1.0),
    (r"(\w+) \1", "ha ho", 0.0),
    (r"", "", 1.0),
    (r"", "a", 0.0),
    (r"a|b|", "", 1.0),
    (r"\S+(\s\S+){2}", "one two three", 1.0),
    (r"\S+(\s\S+){2}", "one two", 0.0),
    (r"[^<>]*", "no tags", 1.0),
    (r"[^<>]*", "a <tag>", 0.0),
]


@pytest.mark.parametrize(("completion", "verdict"), R1, ids=lambda value: str(value)[:40])
def test_the_form_of_reasoning_and_answer(completion: str, verdict: float) -> None:
    assert format_match(completion) == verdict


@pytest.mark.parametrize(("pattern", "completion", "verdict"), PATTERNS, ids=str)
def test_a_pattern_of_ones_own(pattern: str, completion: str, verdict: float) -> None:
    assert format_match(completion, pattern=pattern) == verdict


def test_there_are_at_least_sixty() -> None:
    assert len(R1) + len(PATTERNS) >= 60


def test_anywhere_in_the_completion() -> None:
    assert format_match("it is 42.", pattern=r"\d+", whole=False) == 1.0
    assert format_match("it is.", pattern=r"\d+", whole=False) == 0.0


def test_a_pattern_that_backtracks_for_ever_is_ended() -> None:
    with pytest.raises(TimeoutError, match=r"takes longer than timeout_s = 0\.05"):
        format_match("a" * 40 + "!", pattern=r"(a+)+b|(a|aa)+$", timeout_s=0.05)


def test_what_is_no_pattern_is_said() -> None:
    with pytest.raises(ValueError, match="is no regular expression"):
        format_match("a", pattern="(")
