"""`services` and `buffers` of a checkout are the modules of `streamrl.services` and `streamrl.buffers`, with a notice.
A user's package of such a name is his."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.repository import ROOT


def run(script: str, *path: Path) -> subprocess.CompletedProcess[str]:
    """A program of a user, with these folders before all others."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "PYTHONWARNINGS": "default"}
    command = [sys.executable, "-P", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done


def test_a_former_name_gives_the_same_module_and_a_notice() -> None:
    script = """
import services.run.folder, streamrl.services.run.folder
from buffers.rows import schema
import streamrl.buffers.rows.schema
assert services.run.folder is streamrl.services.run.folder
assert schema is streamrl.buffers.rows.schema
print(schema.__spec__.name, schema.__name__)
"""
    done = run(script, ROOT)
    assert done.stdout.split() == ["streamrl.buffers.rows.schema"] * 2
    for name in ("services", "buffers"):
        assert f"FutureWarning: the package `{name}` is `streamrl.{name}` now" in done.stderr


def test_a_module_that_is_not_there_is_missing_under_the_former_name_too() -> None:
    script = """
try:
    import services.nothing
except ModuleNotFoundError as error:
    print(error.name)
"""
    assert run(script, ROOT).stdout.strip() == "streamrl.services.nothing"


def test_two_checkouts_on_the_path_are_one(tmp_path: Path) -> None:
    for name in ("services/__init__.py", "streamrl/system/former_names.py"):
        copied = tmp_path / "other checkout" / name
        copied.parent.mkdir(parents=True, exist_ok=True)
        copied.write_bytes((ROOT / name).read_bytes())
    script = "import services.run.folder, streamrl; print(services.run.folder.__name__, streamrl.__path__)"
    done = run(script, ROOT, tmp_path / "other checkout")
    assert done.stdout.startswith("streamrl.services.run.folder")
    assert str(ROOT) in done.stdout


@pytest.mark.parametrize("is_package", [True, False])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_package_of_the_user_is_his(is_first: bool, is_package: bool, tmp_path: Path) -> None:
    mine = tmp_path / "services"
    mine.mkdir()
    (mine / "scores.py").write_text("MINE = True\n")
    if is_package:
        (mine / "__init__.py").touch()
    script = "import streamrl.services.run.folder, services.scores; print(services.scores.MINE, services.__path__)"
    done = run(script, *([tmp_path, ROOT] if is_first else [ROOT, tmp_path]))
    assert done.stdout.startswith("True")
    assert str(mine) in done.stdout
    assert done.stderr == ""
