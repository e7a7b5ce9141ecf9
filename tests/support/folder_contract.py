"""An import-linter contract: a folder imports what its `__init__` says, and nothing else of streamrl.

The docstring of an `__init__` has three lines: what lives there; which folders it imports ("It imports `a`, `b`." or
"Its folders import `a`."); what does not come in. A name stands for all below it. What everybody may import, a
folder's own ancestors and what is below it need no word. `streamrl` is the library: not the packages that build on it.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, output

EVERYBODY = ("streamrl.types", "streamrl.ids", "streamrl.errors", "streamrl.clock", "streamrl.config.schema")
"""Words of the whole system, and the shape of its configuration."""
BUILT_ON_IT = ("streamrl.services", "streamrl.buffers")
"""The packages beside the library, links to folders beside it."""

_NAME = re.compile(r"`([a-z_.]+)`")


def said(docstring: str) -> tuple[str, ...] | None:
    """The modules that a docstring names in its sentence about imports; None where it has no such sentence."""
    text = " ".join(docstring.split())
    for begin in ("It imports", "Its folders import"):
        if begin in text:
            return tuple(_NAME.findall(text.partition(begin)[2].partition(". ")[0]))
    return None


def allowed(folder: str, names: tuple[str, ...], target: str) -> bool:
    """Whether a module of `folder` may import `target`."""
    near = _below(target, folder) or any(target == name or _is_file_of(target, name) for name in _ancestors(folder))
    return near or any(_stands_for(name, target) for name in (*names, *EVERYBODY))


def _stands_for(name: str, target: str) -> bool:
    return _below(target, name) and not (name == "streamrl" and any(_below(target, beside) for beside in BUILT_ON_IT))


def _below(module: str, name: str) -> bool:
    return module == name or module.startswith(f"{name}.")


def _ancestors(folder: str) -> list[str]:
    parts = folder.split(".")
    return [".".join(parts[:count]) for count in range(2, len(parts))]


def _is_file_of(module: str, folder: str) -> bool:
    return module.rpartition(".")[0] == folder


class FoldersSay(Contract):
    """See the module."""

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        problems = [problem for folder in self._folders() for problem in _problems(folder, graph)]
        return ContractCheck(kept=not problems, metadata={"problems": problems})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for problem in check.metadata["problems"]:
            output.print_error(problem)

    def _folders(self) -> Iterator[str]:
        # Links are not followed below a folder that is asked for.
        for top in ("streamrl", *BUILT_ON_IT):
            for path in sorted(Path(*top.split(".")).rglob("__init__.py")):
                yield ".".join(path.parent.parts)


def _problems(folder: str, graph: ImportGraph) -> Iterator[str]:
    text = Path(*folder.split("."), "__init__.py").read_text()
    docstring = ast.get_docstring(ast.parse(text)) or ""
    names = said(docstring)
    if names is None or len(docstring.splitlines()) < 3:
        yield f"{folder}/__init__: say in three lines what lives there, what it imports, and what does not come in"
        return
    for module in sorted(name for name in graph.modules if name == folder or _is_file_of(name, folder)):
        if module != folder and graph.find_children(module):
            continue
        for target in sorted(graph.find_modules_directly_imported_by(module)):
            if target.split(".")[0] == "streamrl" and not allowed(folder, names, target):
                yield f"{module} imports {target}, which {folder}/__init__ does not name"
