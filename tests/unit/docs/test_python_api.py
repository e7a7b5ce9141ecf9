"""The examples in the docstrings of the public Python API run as they stand. A user copies them."""

import doctest
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.gateway.agent_sessions import gateway_of
from support.repository import ROOT
from support.runs.docs_examples import DOCS, said

from streamrl import client, errors
from streamrl.client import Client
from streamrl.config.schema.run import ModelConfig
from streamrl.models.load import prepare_model_folder
from streamrl.reference import Reference

FOLDERS = ("streamrl", "streamrl/buffers", "streamrl/services")
SHOWN = "\n".join(re.findall(r"members: \[(.*)\]", (DOCS / "python.md").read_text()))
HEAD = "import asyncio\nimport openai\nimport streamrl\nURL = 'http://127.0.0.1:8000'\n"


def example_of(documented: Any) -> str | None:
    """The code under `Example:` in a docstring."""
    found = re.search(r"^Example:\n((?:    .*\n?|\s*\n)+)", inspect.getdoc(documented) or "", re.MULTILINE)
    return textwrap.dedent(found[1]) if found else None


def modules_with_prompts() -> list[str]:
    """Modules whose docstrings have examples of the interpreter's form."""
    files = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return sorted(
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in files
        if re.search(r"^ +>>> ", path.read_text(), re.MULTILINE)
    )


def methods() -> Iterator[str]:
    """Of a client, those that a user calls; `async with` closes it."""
    return (name for name in vars(Client) if not name.startswith("_") and name != "close")


def as_program(code: str) -> str:
    """A script that runs the lines of an example, in an event loop where they need one."""
    if "await" not in code and "async " not in code:
        return HEAD + code
    return f"{HEAD}async def main():\n{textwrap.indent(code, '    ')}\nasyncio.run(main())"


@pytest.mark.parametrize("module", modules_with_prompts())
def test_the_interpreter_answers_as_the_docstring_says(module: str) -> None:
    results = doctest.testmod(importlib.import_module(module))
    assert (results.failed, results.attempted > 0) == (0, True)


@pytest.mark.parametrize("name", ["connect", "Client", "ScriptClient", *methods()])
async def test_an_example_of_the_client_runs_at_a_live_gateway(name: str, tmp_path: Path) -> None:
    code = example_of(getattr(Client, name, None) or getattr(client, name))
    assert code, f"{name} has no example"
    assert await said(as_program(code), tmp_path, gateway_of)


def test_the_example_of_the_synchronous_loop_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    prepare_model_folder(ModelConfig(preset="tiny-qwen3"), 0, tmp_path / "runs/quickstart/start")
    monkeypatch.chdir(tmp_path)
    code = example_of(Reference)
    assert code
    exec(compile(code, "the example of Reference", "exec"), dict(vars(importlib.import_module("streamrl.reference"))))
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["1", "2"]


def test_the_page_of_the_api_shows_every_name_of_the_client() -> None:
    assert all(re.search(rf"\b{name}\b", SHOWN) for name in client.__all__)


def test_every_public_name_says_what_it_is() -> None:
    documented = [getattr(client, name) for name in client.__all__ if inspect.isclass(getattr(client, name))]
    documented += [one for one in vars(errors).values() if inspect.isclass(one)]
    documented += [getattr(Client, name) for name in methods()]
    assert not [one.__qualname__ for one in documented if not one.__doc__]
