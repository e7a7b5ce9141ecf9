"""Tests of what compiled kernels compute: under NUMBA_DISABLE_JIT=1 nothing computes it."""

import pytest

from streamrl.system.kernel_cache import compiles_kernels

REASON = "NUMBA_DISABLE_JIT is set: no kernel runs"
NEEDS_KERNELS = pytest.mark.skipif(not compiles_kernels(), reason=REASON)


def skip_without_kernels() -> None:
    """Of a module whose own constants need them."""
    if not compiles_kernels():
        pytest.skip(REASON, allow_module_level=True)
