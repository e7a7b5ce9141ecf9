"""Files as text: YAML and JSON dumped from data, and templates of this package filled in."""

import json
from importlib import resources
from string import Template
from typing import Any

import yaml

MADE_BY = "Made by `streamrl deploy` from the run's configuration; make it again rather than change it."


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Texts of several lines as blocks, and nothing by reference."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    node: yaml.Node = dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)
    return node


_Dumper.add_representer(str, _text)


def yaml_text(*documents: Any, comment: str = MADE_BY) -> str:
    """Documents of one file, keys in the order in which they are given. comment: lines at its head."""
    dumped: str = yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)
    return "".join(f"# {line}".rstrip() + "\n" for line in comment.splitlines()) + dumped


class _Blanks(Template):
    """`@{name}` is a blank, and nothing else: shells and Dockerfiles have their own use for dollar signs."""

    pattern = r"@\{(?P<braced>[a-z_]+)\}|(?P<escaped>(?!))|(?P<named>(?!))|(?P<invalid>(?!))"  # type: ignore[assignment]


def json_text(value: Any) -> str:
    return json.dumps(value, indent=2) + "\n"


def template(file: str, /, **values: str) -> str:
    """A file of `templates`, by its path there, its blanks `@{name}` filled in with `values`."""
    found = resources.files("streamrl.deploy").joinpath("templates", *file.split("/")).read_text(encoding="utf-8")
    return _Blanks(found).substitute(values)
