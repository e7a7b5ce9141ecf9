"""Where the user keeps what can be made again, and where numba keeps its kernels, on machines that allow little."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from streamrl.system.cache_folder import cache_folder

KERNEL = """
from streamrl.system.kernel_cache import kernel

@kernel()
def twice(number):
    return 2 * number

def main():
    assert twice(21) == 42
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def test_it_is_in_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temporary: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = cache_folder("data")
    assert found == tmp_path / "cache/streamrl/data"
    assert found.is_dir()
    assert not list(temporary.iterdir())


def test_without_a_home_it_is_one_for_this_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    (tmp_path / "file").write_text("a home that is no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    found = cache_folder("data")
    assert found == temporary / f"streamrl-data-{os.getuid()}"
    assert found.stat().st_mode & 0o777 == 0o700


def test_what_somebody_else_put_there_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (temporary / f"streamrl-data-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    assert cache_folder("data") is None


@pytest.mark.parametrize("there", [True, False])
def test_kernels_of_a_package_that_cannot_be_written_are_kept_in_the_cache(there: bool, tmp_path: Path) -> None:
    package, cache = tmp_path / "package", tmp_path / "cache"
    package.mkdir()
    (package / "kernel.py").write_text(KERNEL)
    if not there:
        (package / "__pycache__").write_text("so no folder can be made here, not even by root")
    own = {"XDG_CACHE_HOME": str(cache), "PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1"}
    program = "import kernel; kernel.main()"
    environment = {**os.environ, **own}
    environment.pop("NUMBA_CACHE_DIR", None)
    environment.pop("NUMBA_DISABLE_JIT", None)
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
    kept = package / "__pycache__" if there else cache / "streamrl/kernels"
    assert [path.suffix for path in sorted(kept.rglob("kernel.twice*"))] == [".nbc", ".nbi"]
