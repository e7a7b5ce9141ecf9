"""A digest of what each compiled kernel gives for the same seeded input; a script, so that a process can begin with
it. With NUMBA_CACHE_DIR the first process compiles and the next one reads what it left."""

import hashlib
import inspect

import numpy as np

from streamrl.engines.torch.eager import kernels

EPS = np.float32(1e-6)


def numbers(seed: int) -> dict[str, str]:
    """A hex digest of all arrays after the call, by kernel."""
    rng = np.random.default_rng(seed)

    def normal(*size: int) -> np.ndarray:
        return rng.normal(size=size).astype(np.float32)

    def scratch(size: int) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros(size, np.float32), np.zeros(size, np.int32)

    norm = np.float32(1) + normal(1, 33) / 8
    row, bits = scratch(64)
    pair = np.zeros((2, 48), np.float32)
    positions, slots, last = rng.integers(0, 50, 5), rng.permutation(5), rng.integers(0, 48, 5)
    flags, tokens = rng.random(5) < 0.3, np.zeros(5, np.int64)
    source, targets = np.arange(3), np.arange(6)
    calls = {
        "multiply": (normal(35, 33), normal(5, 33), normal(35, 5)),
        "exponentials": (-np.abs(normal(33)) * 9, np.zeros(33, np.int32)),
        "rms_norm": (normal(5, 33), norm[0], EPS, normal(5, 33)),
        "rotate": (normal(5, 6, 32), normal(5, 32), EPS, normal(50, 32), normal(50, 32), positions, 5, row[:32]),
        "attend": (
            normal(5, 8, 32), normal(5, 2, 48, 32), normal(5, 2, 48, 32), slots, last, pair, bits[:48],
            normal(5, 4, 32),
        ),
        "gate": (normal(5, 66), np.zeros(33, np.int32), normal(5, 33)),
        "draw": (normal(5, 33) * 4, flags, rng.random(5, np.float32), *scratch(33), tokens, normal(5)),
        "store": (normal(3, 4, 32), source, targets, normal(8, 32)),
    }  # fmt: skip
    found = {}
    for name, arguments in calls.items():
        getattr(kernels, name)(*arguments)
        whole = b"".join(one.tobytes() for one in arguments if isinstance(one, np.ndarray))
        found[name] = hashlib.md5(whole).hexdigest()
    return found


def compiled() -> set[str]:
    """The kernels that the engine calls."""
    return {name for name, value in inspect.getmembers(kernels) if hasattr(value, "py_func") and name[0] != "_"}


if __name__ == "__main__":
    for name, digest in numbers(7).items():
        print(name, digest)
