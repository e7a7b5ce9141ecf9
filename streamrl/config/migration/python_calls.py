"""The keyword arguments of some calls in a Python script, with their lines. Pure: the script is parsed, never run.

Literals are read, and names that the script gives one literal at its top or in the function around. What else an
argument takes makes it unread.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from streamrl.config.loading.toml_lines import SyntaxProblem
from streamrl.config.migration.table import Setting, Unread


class Script:
    """A parsed script. calls: names whose calls are read, and the prefix of their settings.

    Example:
        script = Script(text, "train.py", {"GRPOConfig": "GRPOConfig"})
        script.settings()       # [Setting("GRPOConfig.learning_rate", 1e-6, 12, "train.py")]
    """

    def __init__(self, text: str, file: str, calls: Mapping[str, str]) -> None:
        """Raises SyntaxProblem."""
        try:
            self._tree = ast.parse(text)
            self._nodes = list(ast.walk(self._tree))
        except SyntaxError as error:
            raise SyntaxProblem(f"not valid Python: {error.msg}", error.lineno or 0) from None
        except (ValueError, RecursionError, MemoryError) as error:
            raise SyntaxProblem(f"not valid Python: {error}", 0) from None
        self._file = file
        self._calls = calls
        self._literals = dict(self._assigned())

    def settings(self) -> list[Setting]:
        """Of every call, in the order of the file; of one that is there twice the later one."""
        found: dict[str, Setting] = {}
        for call in self.calls(*self._calls):
            prefix = self._calls[_called(call)]
            for keyword in call.keywords:
                name = f"{prefix}.{keyword.arg or '**'}"
                found[name] = Setting(name, self.value(keyword.value), keyword.value.lineno, self._file)
        return list(found.values())

    def calls(self, *names: str) -> list[ast.Call]:
        """Calls of these names, also as attributes (`trl.GRPOConfig`), in the order of the file."""
        calls = [node for node in self._nodes if isinstance(node, ast.Call) and _called(node) in names]
        return sorted(calls, key=lambda call: (call.lineno, call.col_offset))

    def argument(self, call: ast.Call, name: str, place: int | None = None) -> ast.expr | None:
        """An argument by its name, else by its place; None when it is not given."""
        for keyword in call.keywords:
            if keyword.arg == name:
                return keyword.value
        return call.args[place] if place is not None and place < len(call.args) else None

    def value(self, node: ast.expr) -> Any:
        """The value of an expression, or `Unread`."""
        if isinstance(node, ast.Name) and node.id in self._literals:
            return self._literals[node.id]
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return Unread(ast.unparse(node))

    def expressions(self, name: str) -> list[ast.expr]:
        """What the script assigns to a name, in the order of the file."""
        return [
            node.value
            for node in self._nodes
            if isinstance(node, ast.Assign)
            and any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
        ]

    def modules(self) -> dict[str, str]:
        """The module that each name is imported from."""
        found: dict[str, str] = {}
        for node in self._nodes:
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found |= {alias.asname or alias.name: f"{node.module}:{alias.name}" for alias in node.names}
        return found

    def functions(self) -> set[str]:
        """Functions at its top."""
        return {node.name for node in self._tree.body if isinstance(node, ast.FunctionDef)}

    def _assigned(self) -> Iterator[tuple[str, Any]]:
        """Names that are given a literal, and nothing else."""
        names = [
            target.id
            for node in self._nodes
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        ]
        for node in self._nodes:
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                try:
                    value = ast.literal_eval(node.value)
                except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
                    continue
                if names.count(name) == 1:
                    yield name, value


def _called(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def first(nodes: Sequence[ast.expr]) -> ast.expr | None:
    return nodes[0] if nodes else None
