"""An extension of griffe: the code under `Example:` in a docstring is shown as code, not as a paragraph."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^(?P<indent> *)Example:\n(?P<code>(?:(?P=indent)    .*\n?|\s*\n)+)", re.MULTILINE)


def fenced(docstring: str) -> str:
    """With a fence around the code of each example that has none."""

    def fence(found: re.Match[str]) -> str:
        indent, code = found["indent"], found["code"].rstrip("\n")
        if "```" in code:
            return found[0]
        return f"{indent}Example:\n{indent}    ```python\n{code}\n{indent}    ```\n\n"

    return EXAMPLE.sub(fence, docstring)


class FenceExamples(griffe.Extension):
    """Changes docstrings while they are read, before anything parses them."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
