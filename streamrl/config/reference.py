"""The reference page of the configuration, made from the schema: `python -m streamrl.config.reference` prints
it."""

import ast
import sys
from inspect import cleandoc, getsource
from types import ModuleType
from typing import Any, Final

import msgspec

from streamrl.config.schema import algorithm as algorithm_tables
from streamrl.config.schema import data as data_tables
from streamrl.config.schema import environment as environment_tables
from streamrl.config.schema import fields
from streamrl.config.schema import learner as learner_tables
from streamrl.config.schema import observe as observe_tables
from streamrl.config.schema import rollout as rollout_tables
from streamrl.config.schema import run as schema
from streamrl.config.schema import sandbox as sandbox_tables
from streamrl.config.schema import serve as serve_tables
from streamrl.config.schema.table import Table
from streamrl.config.toml_text import toml_value

TABLE_MODULES: Final = (
    *(schema, algorithm_tables, data_tables, environment_tables, learner_tables),
    *(observe_tables, rollout_tables, sandbox_tables, serve_tables),
)
"""Where the tables are written down."""

_INTRO = """\
# Configuration

<!-- Made by `python -m streamrl.config.reference` from the tables in streamrl/config/schema: change it there. -->

A run is described by one TOML file. Every key has a default; `configs/quickstart.toml` shows a small complete
run.

    streamrl check run.toml                                    # every mistake at once, in a moment
    streamrl up run.toml @ more.toml --learner.optimizer.lr 1e-6 --rollout.deterministic true

Files after `@` and then `--table.key value` (or `--table.key=value`, hyphens or underscores) are laid on top:
later wins, tables merge key by key, lists are replaced whole. An optional key is set back to absent by the
word `"none"`. Relative paths start at the current folder. An unknown key, a value out of its range, and a
combination that cannot work are errors with file, line and way out (exit code 2); a machine that is too small
is exit code 3.

The resolved configuration, defaults included, is written to `<runs>/<name>/config.toml`.
"""


def reference_markdown() -> str:
    """The page: a section for each table, a row for each key."""
    docs = key_docs(*TABLE_MODULES)
    sections = [_section(name, table, docs[table.__name__]) for name, table in fields.tables()]
    return _INTRO + "".join(sections)


def key_docs(*modules: ModuleType) -> dict[str, dict[str, str]]:
    """For each class of the modules, the docstring under each of its annotated fields."""
    nodes = [node for module in modules for node in ast.parse(getsource(module)).body]
    return {node.name: _field_docs(node) for node in nodes if isinstance(node, ast.ClassDef)}


def _field_docs(node: ast.ClassDef) -> dict[str, str]:
    docs = {}
    for field, after in zip(node.body, node.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            docs[field.target.id] = cleandoc(str(after.value.value)).replace("\n", " ")
    return docs


def _section(name: str, table: type[Table], docs: dict[str, str]) -> str:
    own = [field for field in msgspec.structs.fields(table) if not fields.is_table(field.type)]
    rows = [_row(field, docs.get(field.name, "")) for field in own]
    title = f"`[{name}]`" if name else "Top level"
    head = f"\n## {title}\n\n{cleandoc(table.__doc__ or '')}\n\n"
    columns = "| key | allowed | default | meaning |\n|---|---|---|---|\n"
    return head + columns + "".join(rows)


def _row(field: Any, doc: str) -> str:
    default = "absent" if field.default is None else f"`{toml_value(field.default)}`"
    return f"| `{field.name}` | {fields.allowed(field.type)} | {default} | {doc} |\n"


if __name__ == "__main__":
    sys.stdout.write(reference_markdown())
