"""The reward of a program: the forms that tests come in, what passes, and what does not."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from streamrl.config.schema.run import RewardModelConfig, RewardRule
from streamrl.config.schema.sandbox import SandboxConfig
from streamrl.errors import ConfigError
from streamrl.rewards.base import RewardItem
from streamrl.rewards.build import AnyScorer, make_scorer
from streamrl.rewards.verifiers import code_tests as forms
from streamrl.rewards.verifiers.code_tests import Calls, StandardInput, Texts, code_of, same_output, same_value
from streamrl.types import Score

SANDBOX = SandboxConfig(time_s=60.0)
HASTY = SandboxConfig(time_s=2.0)
"""For programs that never end. Others are given time: a machine may be busy."""
FENCED = "I add them.\n```python\n{}\n```\nThat is all."
DOUBLE = "print(2 * int(input()))"
PAIRS = [{"input": "1\n", "output": "2\n"}, {"input": "21", "output": "42"}]


@pytest.fixture(scope="module")
def scorer() -> Iterator[AnyScorer]:
    made = make_scorer("code", RewardModelConfig(), SANDBOX)
    yield made
    made.close()


@pytest.fixture(scope="module")
def hasty() -> Iterator[AnyScorer]:
    made = make_scorer("code", RewardModelConfig(), HASTY)
    yield made
    made.close()


def item(completion: str, prompt: str = "p", **row: Any) -> RewardItem:
    return RewardItem(prompt=prompt, completion=completion, finish_reason="stop", payload=json.dumps(row))


def one(scorer: AnyScorer, completion: str, prompt: str = "p", **row: Any) -> Score:
    (score,) = scorer.score([item(completion, prompt, **row)])
    return score


# ---- which text is the program


@pytest.mark.parametrize(
    ("completion", "code"),
    [
        ("print(1)", "print(1)"),
        (FENCED.format("a = 1"), "a = 1\n"),
        ("```\nfirst\n```\n```py\nlast\n```", "last\n"),
        ("<think>```python\nno\n```</think>yes", "yes"),
        ("```python\ncut off", "cut off"),
        ("```python\na\n```\n```bash\npip install b\n```", "a\n"),
    ],
)
def test_the_program_in_a_completion(completion: str, code: str) -> None:
    assert code_of(completion) == code


# ---- forms of tests


def test_forms_of_published_data_sets() -> None:
    apps = {"inputs": ["1\n", "2\n"], "outputs": ["2\n", ["4"]]}
    assert forms.tests_of({"input_output": json.dumps(apps)}) == StandardInput([("1\n", "2\n"), ("2\n", "4")])
    verl = {"ground_truth": json.dumps({"inputs": [[1, 2]], "outputs": [[3]], "fn_name": "add"})}
    assert forms.tests_of({"reward_model": verl}) == Calls("add", [([1, 2], 3)])
    live = [{"input": "1\n[2, 3]", "output": "6", "testtype": "functional"}]
    row = {"public_test_cases": json.dumps(live), "metadata": json.dumps({"func_name": "add"})}
    assert forms.tests_of(row) == Calls("add", [([1, [2, 3]], 6)])
    assert forms.tests_of({"tests": PAIRS}) == StandardInput([("1\n", "2\n"), ("21", "42")])
    mbpp = {"test_list": ["assert f(1) == 2"], "test_setup_code": "x = 1", "test_imports": ["import math"]}
    assert forms.tests_of(mbpp) == Texts([("test_list[0]", "import math\nx = 1\nassert f(1) == 2")])
    human_eval = {"test": "def check(candidate):\n    assert candidate(1)", "entry_point": "f"}
    assert forms.tests_of(human_eval) == Texts([("test", f"{human_eval['test']}\ncheck(f)")])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({}, "the row has no tests: give it a column 'tests'"),
        ({"tests": []}, "the row has no tests"),
        ({"tests": 3}, "tests holds no tests of a known form: 3"),
        ({"tests": [1, 2]}, "tests holds no tests of a known form"),
        ({"tests": {"inputs": ["1"], "outputs": []}}, "no `inputs` and `outputs` of equal length"),
        ({"tests": {"inputs": [], "outputs": []}}, "tests has no case"),
        ({"tests": [{"input": "1"}]}, "each case has `input` and `output`"),
        (
            {"tests": [{"input": "1", "output": "1", "testtype": "functional"}]},
            "neither fn_name nor metadata.func_name",
        ),
    ],
)
def test_a_row_without_tests_is_a_failed_score_and_no_zero(
    scorer: AnyScorer, row: dict[str, Any], message: str
) -> None:
    score = one(scorer, "print(1)", **row)
    assert score.reward is None
    assert message in score.reason


# ---- what passes


def test_programs_that_read_and_write(scorer: AnyScorer, hasty: AnyScorer) -> None:
    assert one(scorer, FENCED.format(DOUBLE), tests=PAIRS).reward == 1.0
    half = one(scorer, "input(); print(2)", tests=PAIRS)
    assert (half.reward, half.components["passed"]) == (0.0, 0.5)
    assert json.loads(half.info) == {"reason": "test 1: another output"}
    assert json.loads(one(scorer, "1 / 0", tests=PAIRS).info) == {
        "reason": "test 0: exit code 1: ZeroDivisionError: division by zero"
    }
    assert "ran longer than 2 s" in one(hasty, "while True: pass", tests=PAIRS).info


def test_functions_that_are_called(scorer: AnyScorer) -> None:
    tests = {"inputs": [[1, 2], [[3], 4]], "outputs": [3, [[3, 4]]], "fn_name": "add"}
    added = "a + ([b] if isinstance(a, list) else b)"
    assert one(scorer, f"def add(a, b):\n    print('noise')\n    return {added}", tests=tests).reward == 1.0
    assert one(scorer, f"class Solution:\n    def add(self, a, b):\n        return {added}", tests=tests).reward == 1.0
    assert "the solution has no function 'add'" in one(scorer, "x = 1", tests=tests).info
    assert "SyntaxError" in one(scorer, "def add(", tests=tests).info
    second = one(scorer, "def add(a, b):\n    return a + b", tests=tests)
    assert second.components["passed"] == 0.5
    assert "test 1: TypeError" in second.info


def test_test_programs(scorer: AnyScorer) -> None:
    add = "def add(a, b):\n    return a + b"
    asserts = ["assert add(1, 2) == 3", "assert add('a', 'b') == 'ab'"]
    assert one(scorer, FENCED.format(add), test_list=asserts).reward == 1.0
    assert one(scorer, "def add(a, b): return 3", test_list=asserts).components["passed"] == 0.5
    human_eval = {"test": "def check(candidate):\n    assert candidate(1, 2) == 3", "entry_point": "add"}
    assert one(scorer, "    return a + b", prompt="def add(a, b):\n", **human_eval).reward == 1.0
    file = "from solution import add\nimport unittest\n\ndef test_a():\n    assert add(1, 2) == 3\n\n"
    file += "class Test(unittest.TestCase):\n    def test_b(self):\n        self.assertEqual(add(1, 2), 4)\n"
    both = one(scorer, add, test=file)
    assert (both.components["tests"], both.components["passed"]) == (2.0, 0.5)
    assert "test_b (tests.Test.test_b): AssertionError: 3 != 4" in both.info


OBJECTS = """
import collections, enum, math
from dataclasses import dataclass

class Color(enum.Enum):
    RED = 1

class Wrong(ValueError):
    pass

@dataclass
class Point:
    x: int
    y: int = 0
    def __add__(self, other):
        return Point(self.x + other.x, self.y + other.y)

Pair = collections.namedtuple("Pair", "left right")

class Stack:
    def __init__(self):
        self.items = []
    def push(self, item):
        self.items.append(item)
    def __len__(self):
        return len(self.items)
    def __iter__(self):
        return iter(self.items)
    def __enter__(self):
        return self
    def __exit__(self, *_):
        self.items.clear()

def fails(text):
    raise Wrong(text)
def sort(items):
    items.sort()
def apply(function, items):
    return [function(item) for item in items]
def count(number):
    yield from range(number)
def values():
    return {(1, 2): {3}, "a": [None, True, 1.5, b"x", 2 + 1j], "n": float("nan")}
def counted(text):
    return collections.Counter(text)
def red():
    return Color.RED
def pair():
    return Pair(1, 2)
"""


@pytest.mark.parametrize(
    "test",
    [
        "assert Point(1) + Point(2, 3) == Point(3, 3) and Point(1) != Point(2) and Point(1).x == 1",
        "stack = Stack()\nstack.push([2])\nassert len(stack) == 1 and list(stack) == [[2]] and [2] in stack",
        "with Stack() as stack:\n    stack.push(1)\nassert len(stack) == 0",
        "try:\n    fails('no')\nexcept Wrong as error:\n    assert str(error) == 'no'\nelse:\n    assert 0",
        "try:\n    fails('no')\nexcept ValueError:\n    pass\nelse:\n    raise AssertionError",
        "items = [3, 1, 2]\nsort(items)\nassert items == [1, 2, 3]",
        "seen = []\nassert apply(lambda one: seen.append(one) or one + 1, [1, 2]) == [2, 3] and seen == [1, 2]",
        "assert list(count(3)) == [0, 1, 2] and next(count(1)) == 0",
        "found = values()\nfound.pop('n')\nassert found == {(1, 2): {3}, 'a': [None, True, 1.5, b'x', 2 + 1j]}",
        "assert counted('aab') == {'a': 2, 'b': 1}",
        "assert red() == Color.RED and red().name == 'RED' and pair().left == 1",
        "assert isinstance(Point(1), Point) and not isinstance(3, Point)",
        "assert math.pi > 3 and str(Point(1)) == 'Point(x=1, y=0)'",
    ],
)
def test_tests_see_a_solution_as_if_it_were_beside_them(scorer: AnyScorer, test: str) -> None:
    score = one(scorer, OBJECTS, tests=test)
    assert score.reward == 1.0, score.info


def test_a_solution_that_ends_hangs_or_prints_fails_its_tests(scorer: AnyScorer, hasty: AnyScorer) -> None:
    asserts = ["assert add(1, 2) == 3"] * 2
    assert "the solution's process ended" in one(scorer, "import os\nos._exit(0)", tests=asserts).info
    assert "ran longer than 2 s" in one(hasty, "def add(a, b):\n    while True: pass", tests=asserts).info
    first = "calls = []\ndef add(a, b):\n    calls.append(1)\n    while len(calls) > 1: pass\n    return a + b"
    assert one(hasty, first, tests=asserts).components["passed"] == 0.5


# ---- options


def test_credit_for_a_part(scorer: AnyScorer) -> None:
    rule = RewardRule({"code": 1.0}, {"code": {"credit": "continuous", "most_tests": 3, "tolerance": 1e-3}})
    made = make_scorer(rule, RewardModelConfig(), SANDBOX)
    tests = [{"input": str(number), "output": str(number // 2 * 2)} for number in range(4)]
    assert one(made, "print(int(input()) + 1e-4)", tests=tests).reward == pytest.approx(2 / 3)
    made.close()


def test_an_option_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="takes no option 'credits'"):
        make_scorer(RewardRule({"code": 1.0}, {"code": {"credits": "all"}}), RewardModelConfig(), SANDBOX)


def test_outputs_are_compared_by_words() -> None:
    assert same_output("1  2 \n3\n\n", "1 2\n3")
    assert not same_output("1 2 3", "1 2\n3")
    assert not same_output("1.0", "1")
    assert same_output("1.0001 a", "1 a", 1e-3)
    assert not same_output("1.01 a", "1 a", 1e-3)
    assert not same_output("b", "a", 1e-3)


def test_values_are_compared_as_data() -> None:
    assert same_value([1, {"a": (2.0)}], [1.0, {"a": 2}])
    assert not same_value(True, 1)
    assert not same_value([1], [1, 2])
    assert not same_value({"a": 1}, {"b": 1})
    assert same_value(0.1 + 0.2, 0.3, 1e-9)
    assert not same_value(10**400, 10**400 + 1, 1e-9)
    assert not same_value("3", 3)
