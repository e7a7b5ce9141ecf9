"""What numba keeps of our kernels, for several processes at once."""

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from streamrl.system.kernel_cache import compiles_kernels

MODULE = """
from streamrl.system.kernel_cache import kernel

@kernel()
def total(numbers):
    whole = 0
    for index in range(numbers.size):
        whole += numbers[index]
    return whole
"""
NARROW, WIDE = np.array([1, 2, 3], np.uint16), np.array([1, 2, 4], np.uint32)

pytestmark = pytest.mark.skipif(not compiles_kernels(), reason="NUMBA_DISABLE_JIT is set")


def loaded(path: Path) -> ModuleType:
    """The module as another process has it: nothing is compiled yet."""
    spec = importlib.util.spec_from_file_location("kernels_of_a_test", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "kernels_of_a_test.py").write_text(MODULE)
    return tmp_path / "kernels_of_a_test.py"


def test_a_function_is_compiled_once_for_all_processes(path: Path) -> None:
    assert (loaded(path).total(NARROW), loaded(path).total(WIDE)) == (6, 7)
    again = loaded(path)
    assert (again.total(NARROW), again.total(WIDE)) == (6, 7)
    assert len(again.total.stats.cache_hits) == 2
    assert not again.total.stats.cache_misses


def test_processes_that_compile_at_once_write_over_no_file_of_each_other(path: Path) -> None:
    assert loaded(path).total(NARROW) == 6
    (index,) = path.parent.rglob("*.nbi")
    of_the_first = index.read_bytes()
    index.unlink()  # as another process found it, which began before that one had written
    assert loaded(path).total(WIDE) == 7
    index.write_bytes(of_the_first)  # which came last
    third = loaded(path)
    assert third.total(NARROW) == 6
    assert len(third.total.stats.cache_hits) == 1


def test_a_function_is_compiled_again_when_a_module_beside_it_changes(path: Path) -> None:
    assert loaded(path).total(NARROW) == 6
    (path.parent / "that_it_takes_from.py").write_text("ONE = 1")
    again = loaded(path)
    assert again.total(NARROW) == 6
    assert again.total.stats.cache_misses
