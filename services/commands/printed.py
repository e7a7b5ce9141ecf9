"""Plain data on the terminal: a line for each value, or JSON. Imports nothing heavy."""

import json
from typing import Any


def print_facts(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(facts))
        return
    for key, value in _flat(facts):
        print(f"{key:<24} {value}")


def _flat(facts: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, value in facts.items():
        nested = isinstance(value, dict)
        pairs += _flat(value, f"{prefix}{key}.") if nested else [(f"{prefix}{key}", value)]
    return pairs
