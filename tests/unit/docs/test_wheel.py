"""What is installed is whole: a wheel, in a folder of its own, has all files, and its command works."""

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.repository import ROOT

SHADOWS = ("services", "buffers", "tests", "configs")
"""Names of packages that a user may have."""
PYTHONS = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
EXTRAS = "data,lora,low-bit,math,sql,tensorboard"
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
    """Of the package, those behind links among them."""
    found = (Path(at, name) for at, _, names in os.walk(folder / "streamrl", followlinks=True) for name in names)
    return {str(path.relative_to(folder)) for path in found if "__pycache__" not in path.parts}


def contents_of(wheel: Path) -> dict[str, int]:
    """What is in it, with the checksum of each file."""
    with zipfile.ZipFile(wheel) as opened:
        return {file.filename: file.CRC for file in opened.infolist()}


def test_the_wheel_has_every_file_of_the_package_and_no_other_name(installed: Path) -> None:
    assert files_of(installed) == files_of(ROOT)
    for name in ("py.typed", "services/cli/main.py", "buffers/rows/schema.py", "configs/quickstart.toml"):
        assert f"streamrl/{name}" in files_of(installed)
    assert any(name.endswith(".html") for name in files_of(installed))
    names = {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")}
    assert names == {"bin", "streamrl"}


def test_a_source_distribution_gives_the_same_wheel(installed: Path, tmp_path: Path) -> None:
    run(*PIP, "install", "--target", tmp_path / "hatchling", "hatchling")
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "hatchling")}
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path, cwd=ROOT, env=env)
    (source,) = tmp_path.glob("streamrl-*.tar.gz")
    run(*PIP, "wheel", "--no-deps", "--wheel-dir", tmp_path, source)
    checkouts, sources = (next(folder.glob("streamrl-*.whl")) for folder in (installed.parent, tmp_path))
    assert contents_of(sources) == contents_of(checkouts)


def test_its_modules_are_those_of_the_wheel(installed: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(installed)}
    names = ("streamrl", "streamrl.buffers", "streamrl.services")
    program = f"import {', '.join(names)}; print({', '.join(f'{name}.__file__' for name in names)})"
    printed = run(sys.executable, "-c", program, cwd=installed.parent, env=env)
    assert printed.split() == [str(installed.joinpath(*name.split("."), "__init__.py")) for name in names]


def test_its_command_prints_its_help(installed: Path) -> None:
    assert "Usage: streamrl COMMAND" in streamrl(installed, "--help")


def test_it_reads_the_quickstart(installed: Path) -> None:
    assert "nothing wrong; run quickstart" in streamrl(installed, "check", "quickstart")


def test_it_trains_with_a_reward_of_the_users_beside_packages_of_any_name(installed: Path, tmp_path: Path) -> None:
    for name in SHADOWS:
        (tmp_path / "mine" / name).mkdir(parents=True)
        (tmp_path / "mine" / name / "__init__.py").write_text(f"MINE = {name!r}\n")
    reward = "from services import MINE\n\n\ndef reward(completion, **_):\n    return float(MINE in completion)\n"
    (tmp_path / "mine" / "services" / "scores.py").write_text(reward)
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "mine"), str(installed)]),
        "OMP_NUM_THREADS": "1",
    }
    short = ("--learner.steps", "2", "--warmup.max_steps", "0", "--eval.max_items", "8")
    up = ("up", "quickstart", "--reward.function", "services.scores:reward", *short)
    told = run(installed / "bin/streamrl", *up, cwd=tmp_path, env=env)
    assert "run quickstart is finished" in told


@pytest.mark.parametrize("version", PYTHONS)
def test_what_it_needs_has_wheels_for_each_python_that_it_names(version: str, installed: Path, tmp_path: Path) -> None:
    (wheel,) = installed.parent.glob("streamrl-*.whl")
    nowhere = ("--dry-run", "--ignore-installed", "--target", tmp_path)
    there = ("--only-binary", ":all:", "--implementation", "cp", "--python-version", version)
    run(*PIP, "install", *nowhere, *there, "--constraint", ROOT / "constraints.txt", f"{wheel}[{EXTRAS}]")
