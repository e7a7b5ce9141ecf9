"""The calculator tool: arithmetic on numbers, and nothing else.

An expression is parsed, never evaluated as code, and every operation is bounded: no text of a model takes more than a
moment or more than some kilobytes.
"""

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Final

MOST_CHARACTERS: Final = 1000
MOST_BITS: Final = 4096
"""Of an integer, given or computed."""
_Number = int | float

_BINARY: Final[Mapping[type[ast.operator], Callable[[_Number, _Number], _Number]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_UNARY: Final[Mapping[type[ast.unaryop], Callable[[_Number], _Number]]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
_FUNCTIONS: Final[Mapping[str, Callable[..., _Number]]] = {
    "abs": abs,
    "ceil": math.ceil,
    "floor": math.floor,
    "max": max,
    "min": min,
    "round": round,
    "sqrt": math.sqrt,
}


def calculator(expression: str) -> str:
    """Computes an arithmetic expression.

    Args:
        expression: numbers, + - * / // % **, brackets, abs, ceil, floor, max, min, round and sqrt; such as (3 + 4) * 2

    Raises ValueError for anything else, and for a number that is too large.

    Example:
        >>> calculator("(3 + 4) * 2")
        '14'
    """
    text = expression.strip().replace("^", "**").replace("\u00d7", "*").replace("\u00f7", "/").replace(",", "")
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"the expression has {len(text)} characters; at most {MOST_CHARACTERS} are taken")
    if any(name in expression for name in ("max", "min", "round")):
        text = expression.strip()  # their commas stand between arguments
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{expression[:80]!r} is no arithmetic expression") from error
    try:
        return _shown(_value(tree.body))
    except (ArithmeticError, RecursionError, TypeError) as error:
        raise ValueError(f"{expression[:80]!r}: {error}") from error


def _value(node: ast.expr) -> _Number:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return _bounded(value)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_value(left), _value(right))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _bounded(_BINARY[type(op)](_value(left), _value(right)))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            return _UNARY[type(op)](_value(operand))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            return _bounded(_FUNCTIONS[name](*map(_value, arguments)))
    raise ValueError(f"{ast.unparse(node)[:80]!r} is not arithmetic")


def _power(base: _Number, exponent: _Number) -> _Number:
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * max(exponent, 0) > MOST_BITS:
        raise ValueError(f"the power has more than {MOST_BITS} bits")
    result = base**exponent
    if isinstance(result, complex):
        raise ValueError("the root of a negative number is not real")
    return _bounded(result)


def _bounded(value: _Number) -> _Number:
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise ValueError(f"a number has more than {MOST_BITS} bits")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"the result is {value}")
    return value


def _shown(value: _Number) -> str:
    """A whole number without a point, others with 12 digits."""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else f"{value:.12g}"
    return str(value)
