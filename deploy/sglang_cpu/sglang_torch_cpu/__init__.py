"""SGLang asks this package at its start whether it takes over. It does only where streamrl says so: on a CPU."""

import os

GATE = "SGLANG_TORCH_CPU"


def activate() -> str | None:
    """The platform's class, by name; None leaves the choice to SGLang."""
    return "sglang_torch_cpu.platform.TorchCpu" if os.environ.get(GATE) == "1" else None
