"""Versions that are written down twice are the same: constraints.txt, uv.lock, and what the Makefile installs."""

import re
import tomllib
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from support.repository import ROOT

LOCK = ROOT / "uv.lock"


def canonical(name: str) -> str:
    """As package indexes compare names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = (line.split("==") for line in lines if not line.startswith("#"))
    return {canonical(name): version for name, version in pins}


def locked() -> list[dict[str, Any]]:
    packages: list[dict[str, Any]] = tomllib.loads(LOCK.read_text())["package"]
    return packages


def test_the_lock_has_every_pin_in_the_same_version() -> None:
    versions: dict[str, set[str]] = {}
    for package in locked():
        versions.setdefault(package["name"], set()).add(package["version"])
    assert {name: version for name, version in constraints().items() if version not in versions.get(name, ())} == {}
    # Where two extras exclude each other, each has its own: uv asks for one at a time. Or a Python does.
    of_extras = {"openai", "graphql-core", "grpcio-reflection", "pillow", "protobuf", "pyarrow", "python-dateutil"}
    assert {name for name, several in versions.items() if len(several) > 1} == of_extras | {"pyroaring", "scipy"}


def test_the_lock_is_of_what_the_project_asks_for_today() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = {(Requirement(line), "") for line in project["dependencies"]}
    for extra, lines in project["optional-dependencies"].items():
        asked |= {(Requirement(line.partition(";")[0]), extra) for line in lines}
    (streamrl,) = (package for package in locked() if package["name"] == "streamrl")
    given = streamrl["metadata"]["requires-dist"]
    assert {(canonical(one.name), str(one.specifier), extra) for one, extra in asked} == {
        (one["name"], str(SpecifierSet(one.get("specifier", ""))), extra_of(one.get("marker", ""))) for one in given
    }


def extra_of(marker: str) -> str:
    found = re.search(r"extra == '([^']+)'", marker)
    return found[1] if found else ""


def test_what_builds_the_docs_is_pinned_and_is_what_the_extra_says() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["docs"]
    wanted = [requirement.partition(";")[0].strip() for requirement in extra]
    rule = (ROOT / "Makefile").read_text().partition("\n.venvs/docs/.installed:")[2].partition("\ttouch")[0]
    assert "--constraint constraints.txt" in rule
    for requirement in wanted:
        assert re.search(rf"(?<=[' ]){re.escape(requirement)}(?=['\s])", rule), requirement
        assert canonical(re.split(r"[\[=<>]", requirement)[0]) in constraints()
