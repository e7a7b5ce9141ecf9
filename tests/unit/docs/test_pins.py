"""Versions that are written down twice are the same: constraints.txt, uv.lock, and what the Makefile installs."""

import re
import tomllib

import pytest
from support.repository import ROOT

LOCK = ROOT / "uv.lock"


def canonical(name: str) -> str:
    """As package indexes compare names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = (line.split("==") for line in lines if not line.startswith("#"))
    return {canonical(name): version for name, version in pins}


@pytest.mark.skipif(not LOCK.exists(), reason="there is no uv.lock")
def test_the_lock_has_every_pin_in_the_same_version() -> None:
    locked = {package["name"]: package.get("version") for package in tomllib.loads(LOCK.read_text())["package"]}
    assert {name: locked.get(name) for name in constraints()} == constraints()


def test_what_builds_the_docs_is_pinned_and_is_what_the_extra_says() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["docs"]
    wanted = [requirement.partition(";")[0].strip() for requirement in extra]
    rule = (ROOT / "Makefile").read_text().partition("\n.venvs/docs/.installed:")[2].partition("\ttouch")[0]
    assert "--constraint constraints.txt" in rule
    for requirement in wanted:
        assert re.search(rf"(?<=[' ]){re.escape(requirement)}(?=['\s])", rule), requirement
        assert canonical(re.split(r"[\[=<>]", requirement)[0]) in constraints()
