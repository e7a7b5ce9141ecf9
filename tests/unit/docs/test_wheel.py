"""What is installed is whole: a wheel, in a folder of its own, has all files, and its command works."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.repository import ROOT

PACKAGES = ("streamrl", "buffers", "services")
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")

pytestmark = pytest.mark.long
"""It is built in an environment of its own, for which pip asks its index."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the wheel is installed, without what it depends on."""
    folder = tmp_path_factory.mktemp("wheel")
    run(*PIP, "wheel", "--no-deps", "--wheel-dir", folder, ROOT)
    (wheel,) = folder.glob("streamrl-*.whl")
    run(*PIP, "install", "--no-deps", "--target", folder / "installed", wheel)
    return folder / "installed"


def run(*command: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def streamrl(installed: Path, *arguments: str | Path) -> str:
    """The command of the wheel, which alone is found first."""
    env = {**os.environ, "PYTHONPATH": str(installed)}
    return run(installed / "bin/streamrl", *arguments, cwd=installed.parent, env=env)


def files_of(folder: Path) -> set[str]:
    found = (path.relative_to(folder) for package in PACKAGES for path in (folder / package).rglob("*"))
    return {str(path) for path in found if (folder / path).is_file() and "__pycache__" not in path.parts}


def test_the_wheel_has_every_file_of_the_packages(installed: Path) -> None:
    assert files_of(installed) == files_of(ROOT)
    assert "streamrl/py.typed" in files_of(installed)
    assert any(name.endswith(".html") for name in files_of(installed))


def test_its_modules_are_those_of_the_wheel(installed: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(installed)}
    program = f"import {', '.join(PACKAGES)}; print({', '.join(f'{name}.__file__' for name in PACKAGES)})"
    printed = run(sys.executable, "-c", program, cwd=installed.parent, env=env)
    assert printed.split() == [str(installed / name / "__init__.py") for name in PACKAGES]


def test_its_command_prints_its_help(installed: Path) -> None:
    assert "Usage: streamrl COMMAND" in streamrl(installed, "--help")


def test_it_reads_the_quickstart(installed: Path) -> None:
    assert "nothing wrong; run quickstart" in streamrl(installed, "check", ROOT / "configs/quickstart.toml")
