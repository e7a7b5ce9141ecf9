"""JSON schemas of tools, against those that transformers makes of the same functions."""

from typing import Any, Literal

import pytest

from streamrl.environments.calculator import calculator
from streamrl.environments.schemas import tool_schema, tool_schemas
from streamrl.errors import ConfigError


def search(query: str, limit: int = 3, exact: bool = False) -> list[str]:
    """
    Searches the library.

    Args:
        query: what is looked for
        limit: how many are given
        exact: whether words count as they are

    Returns:
        The titles.
    """
    return [query] * limit


def weigh(values: list[float], unit: Literal["g", "kg"] | None = None) -> float:
    """
    Weighs.

    Args:
        values: of each
        unit: of them
    """
    return sum(values)


def test_a_function_has_the_schema_that_transformers_gives_it() -> None:
    from transformers.utils import get_json_schema

    ours, theirs = tool_schema(search), get_json_schema(search)
    theirs["function"].pop("return", None)
    assert ours == theirs


def test_types_that_hold_others() -> None:
    properties = tool_schema(weigh)["function"]["parameters"]["properties"]
    assert properties["values"] == {"type": "array", "items": {"type": "number"}, "description": "of each"}
    assert properties["unit"] == {"type": "string", "enum": ["g", "kg"], "description": "of them"}


def test_the_calculators() -> None:
    function = tool_schema(calculator)["function"]
    assert function["description"].startswith("Computes an arithmetic expression.")
    assert function["parameters"]["required"] == ["expression"]


def test_a_schema_stays_as_it_is() -> None:
    given = {"type": "function", "function": {"name": "add", "strict": True}}
    assert tool_schema(given) == given


def any_number(*numbers: int) -> int:
    return sum(numbers)


@pytest.mark.parametrize("tool", [{}, {"function": {}}, {"function": {"name": 3}}, 3, any_number])
def test_what_is_no_tool(tool: Any) -> None:
    with pytest.raises(ConfigError, match="tool"):
        tool_schema(tool)


def test_a_schema_without_its_type_is_given_it() -> None:
    assert tool_schema({"function": {"name": "add"}}) == {"type": "function", "function": {"name": "add"}}


@pytest.mark.parametrize(
    ("tools", "text"),
    [
        ({"add": abs}, "tools is a dict, not a list"),
        (lambda: [], "tools is a function, not a list"),
        ([{"name": "add", "input_schema": {}}], "no function.name: .*; its form is"),
        ([{"function": {"name": "add", "parameters": ["x"]}}], "tool 'add': its parameters are a list"),
        ([{"function": {"name": "add", "parameters": {"type": str}}}], "not JSON"),
        ([{"function": {"name": "add"}}] * 2, "two tools have the name 'add'"),
    ],
)
def test_what_are_no_tools(tools: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        tool_schemas(tools)
