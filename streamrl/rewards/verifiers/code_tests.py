"""The tests of a row, in the forms that published data sets have them. Pure.

| form | seen in |
|---|---|
| `{"inputs": [...], "outputs": [...], "fn_name": ...}`, also as JSON text | APPS, TACO, verl's prime code |
| `[{"input": ..., "output": ..., "testtype": ...}]`, also as JSON text | LiveCodeBench, DeepCoder, code contests |
| `["assert f(1) == 2", ...]` | MBPP (`test_list`), open-instruct |
| a text with `check(candidate)`, and `entry_point` | HumanEval |
| a text with `test_...` functions or `unittest.TestCase` classes | KodCode, pytest files |
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

COLUMNS: Final = (
    "tests",
    "test_list",
    "test",
    "test_cases",
    "input_output",
    "private_test_cases",
    "public_test_cases",
    "ground_truth",
    "answer",
)
"""Where the tests of a row are looked for, in this order, after verl's `reward_model.ground_truth`."""
_FENCED: Final = re.compile(r"```([^\n`]*)\n(.*?)(?:```|\Z)", re.DOTALL)
_PYTHON: Final = ("", "python", "python3", "py")


class StandardInput(msgspec.Struct, frozen=True):
    """A program is run once for each pair of standard input and what it is to write."""

    cases: list[tuple[str, str]]


class Calls(msgspec.Struct, frozen=True):
    """A function is called once for each list of arguments, and is to return the value beside it."""

    name: str
    cases: list[tuple[list[Any], Any]]


class Texts(msgspec.Struct, frozen=True):
    """Test programs by name, run against the solution."""

    cases: list[tuple[str, str]]


Tests = StandardInput | Calls | Texts


def code_of(completion: str) -> str:
    """The program in a completion: the last fenced block of Python behind `</think>`, else all of that text."""
    text = completion.rpartition("</think>")[2]
    blocks = [body for language, body in _FENCED.findall(text) if language.strip().lower() in _PYTHON]
    return blocks[-1] if blocks else text


def tests_of(row: Mapping[str, Any]) -> Tests:
    """The tests of a row. Raises ValueError for a row without, or with some that have none of the forms."""
    model = row.get("reward_model")
    if isinstance(model, Mapping) and model.get("ground_truth") is not None:
        return _tests(model["ground_truth"], row, "reward_model.ground_truth")
    for column in COLUMNS:
        if row.get(column) not in (None, "", [], {}):
            return _tests(row[column], row, column)
    raise ValueError(f"the row has no tests: give it a column {COLUMNS[0]!r}")


def _tests(given: Any, row: Mapping[str, Any], column: str) -> Tests:
    if isinstance(given, str):
        parsed = _parsed(given)
        if parsed is None:
            return Texts([(column, _whole(given, row))])
        given = parsed
    if isinstance(given, Mapping):
        return _of_columns(given, column)
    if isinstance(given, Sequence) and given and all(isinstance(one, str) for one in given):
        return Texts([(f"{column}[{place}]", _whole(one, row)) for place, one in enumerate(given)])
    if isinstance(given, Sequence) and given and all(isinstance(one, Mapping) for one in given):
        return _of_records(given, row, column)
    raise ValueError(f"{column} holds no tests of a known form: {given!r:.200}")


def _parsed(text: str) -> Any:
    """What a text that is JSON holds; None for any other, such as a program."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict | list) else None


def _whole(test: str, row: Mapping[str, Any]) -> str:
    """A test program with what its row says that stands around it."""
    before = "\n".join(str(one) for one in row.get("test_imports") or [])
    setup = str(row.get("test_setup_code") or "")
    entry = row.get("entry_point")
    after = f"\ncheck({entry})" if entry and "def check(" in test and f"check({entry})" not in test else ""
    return "\n".join(part for part in (before, setup, test) if part) + after


def _of_columns(given: Mapping[str, Any], column: str) -> Tests:
    inputs, outputs = given.get("inputs"), given.get("outputs")
    if not isinstance(inputs, Sequence) or not isinstance(outputs, Sequence) or len(inputs) != len(outputs):
        raise ValueError(f"{column} has no `inputs` and `outputs` of equal length: {list(given)}")
    if not inputs:
        raise ValueError(f"{column} has no case")
    if name := given.get("fn_name"):
        # An output in a list of its own is one value, as APPS writes it.
        return Calls(str(name), [(list(one), _only(after)) for one, after in zip(inputs, outputs, strict=True)])
    return StandardInput([(_lines(one), _lines(after)) for one, after in zip(inputs, outputs, strict=True)])


def _of_records(given: Sequence[Mapping[str, Any]], row: Mapping[str, Any], column: str) -> Tests:
    if any("input" not in one or "output" not in one for one in given):
        raise ValueError(f"{column}: each case has `input` and `output`, and one has {list(given[0])}")
    if any(one.get("testtype") == "functional" or one.get("type") == "function_call" for one in given):
        name = given[0].get("fn_name") or _metadata(row).get("func_name")
        if not name:
            raise ValueError(f"{column}: its cases are calls, and neither fn_name nor metadata.func_name says of what")
        return Calls(str(name), [(_arguments(one["input"]), _value(one["output"])) for one in given])
    return StandardInput([(_lines(one["input"]), _lines(one["output"])) for one in given])


def _metadata(row: Mapping[str, Any]) -> Mapping[str, Any]:
    found = row.get("metadata")
    if isinstance(found, str):
        found = _parsed(found)
    return found if isinstance(found, Mapping) else {}


def _arguments(given: Any) -> list[Any]:
    """LiveCodeBench writes an argument a line, each as JSON."""
    if isinstance(given, str):
        return [_value(line) for line in given.split("\n") if line.strip()]
    return list(given) if isinstance(given, Sequence) else [given]


def _value(given: Any) -> Any:
    try:
        return json.loads(given) if isinstance(given, str) else given
    except ValueError:
        return given


def _only(given: Any) -> Any:
    return given[0] if isinstance(given, list) and len(given) == 1 else given


def _lines(given: Any) -> str:
    return "\n".join(map(str, given)) if isinstance(given, list) else str(given)


def same_output(written: str, wanted: str, tolerance: float = 0.0) -> bool:
    """Whether two outputs have the same words on each line; spaces at ends and empty lines at the end do not count.

    tolerance: by which two numbers may differ, absolutely or as a share."""
    left, right = ([line.split() for line in text.rstrip().split("\n")] for text in (written, wanted))
    if left == right or tolerance == 0.0:
        return left == right
    return len(left) == len(right) and all(
        len(ours) == len(theirs) and all(_close(*pair, tolerance) for pair in zip(ours, theirs, strict=True))
        for ours, theirs in zip(left, right, strict=True)
    )


def same_value(returned: Any, wanted: Any, tolerance: float = 0.0) -> bool:
    """Whether two values of JSON are equal. A list that holds the only value stands for it, as APPS has it."""
    if isinstance(returned, bool) or isinstance(wanted, bool):
        return returned is wanted
    if isinstance(returned, int | float) and isinstance(wanted, int | float):
        return returned == wanted or (tolerance > 0.0 and _near(returned, wanted, tolerance))
    if isinstance(returned, list) and isinstance(wanted, list):
        pairs = zip(returned, wanted, strict=False)
        return len(returned) == len(wanted) and all(same_value(ours, theirs, tolerance) for ours, theirs in pairs)
    if isinstance(returned, dict) and isinstance(wanted, dict):
        return returned.keys() == wanted.keys() and all(
            same_value(returned[key], wanted[key], tolerance) for key in returned
        )
    return bool(returned == wanted)


def _close(ours: str, theirs: str, tolerance: float) -> bool:
    if ours == theirs:
        return True
    try:
        left, right = float(ours), float(theirs)
    except ValueError:
        return False
    return _near(left, right, tolerance)


def _near(left: float, right: float, tolerance: float) -> bool:
    try:
        return abs(float(left) - float(right)) <= tolerance * max(1.0, abs(float(right)))
    except OverflowError:  # whole numbers that no float holds
        return False
