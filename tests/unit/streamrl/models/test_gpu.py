"""What a GPU cannot do or hold is said in one message, with the number that would fit."""

import pytest
import torch

from streamrl.errors import ConfigError
from streamrl.models.gpu import MARGIN, GpuMemory, check_cache, usable_device

GIB = 2**30


def test_a_cpu_is_always_usable() -> None:
    assert usable_device("cpu", torch.bfloat16, "rollout.device") == torch.device("cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_a_machine_without_a_gpu_says_why_and_the_way_out() -> None:
    with pytest.raises(ConfigError, match=r'^rollout\.device is "cuda", but torch .*; set it to "cpu"'):
        usable_device("cuda", torch.float32, "rollout.device")


def test_a_cache_that_fits_with_the_margin_is_taken() -> None:
    check_cache(10 * GIB, GpuMemory(10 * GIB + MARGIN, 80 * GIB))


def test_a_cache_that_is_too_large_is_refused_with_the_number_that_fits() -> None:
    room = GpuMemory(10 * GIB + MARGIN - 1, 80 * GIB)
    with pytest.raises(ConfigError, match=rf"rollout\.kv_bytes to at most {10 * GIB - 1}$"):
        check_cache(10 * GIB, room)
    check_cache(10 * GIB - 1, room)


def test_a_gpu_that_others_fill_names_no_number_below_one() -> None:
    with pytest.raises(ConfigError, match="free the GPU, or take a larger one"):
        check_cache(GIB, GpuMemory(MARGIN // 2, 80 * GIB))
