"""What streamrl adds to vLLM's workers: taking a whole model's weights from safetensors files. For vLLM 0.32.

Guarantees: files that are not exactly this model are refused before anything changes; whoever asks is told which
weights the worker holds whole, or that it holds none. Generation must be paused meanwhile. This file runs in the
server's environment and imports nothing of streamrl.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from vllm.config import set_current_vllm_config
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.platforms import current_platform

FIRST = "default"
"""vLLM's own label of the weights that it started with."""
HEAD = "lm_head.weight"


class WeightFiles:
    """Mixed into a worker's class, so the names begin with ours. Its methods are called by `/collective_rpc`."""

    streamrl_held: str | None = FIRST

    def streamrl_holds(self) -> str | None:
        """The label of the weights that this worker holds, whole; None when a load broke off."""
        return self.streamrl_held

    def streamrl_load_weights(self, folder: str, label: str) -> str | None:
        """Take the weights in the files of `folder` as `label`; returns why not, and nothing has changed, when they are
        not this model's. An error that is raised means that they are torn."""
        files = sorted(Path(folder).glob("*.safetensors"))
        tied = bool(getattr(self.model_config.hf_config, "tie_word_embeddings", False))
        with ExitStack() as opened:
            tensors = [opened.enter_context(safe_open(file, "pt")) for file in files]
            if fault := fault_of(shapes_of(tensors), self._streamrl_shapes(), tied):
                return fault
            self.streamrl_held = None
            self._streamrl_load(each(tensors), tied)
        self.streamrl_held = label
        return None

    def _streamrl_shapes(self) -> dict[str, tuple[int, ...]]:
        """The tensors of the model's own folder, which it was started with."""
        with ExitStack() as opened:
            files = sorted(Path(self.model_config.model).glob("*.safetensors"))
            return shapes_of([opened.enter_context(safe_open(file, "pt")) for file in files])

    @torch.no_grad()
    def _streamrl_load(self, tensors: Iterator[tuple[str, torch.Tensor]], tied: bool) -> None:
        model = self.model_runner.get_model()
        # Layers repack their weights, and only this knows how to unpack, fill and pack them again, in the same memory.
        with set_current_vllm_config(self.vllm_config):
            initialize_layerwise_reload(model)
            model.load_weights(tensors)
            finalize_layerwise_reload(model, self.model_config)
        if tied and current_platform.is_cpu() and getattr(model, "lm_head", None) is not None:
            # The head's packed copy is made from the embedding once; the reload knows only the embedding.
            dispatch_cpu_unquantized_gemm(model.lm_head, remove_weight=False)


def shapes_of(files: Sequence[Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(file.get_slice(name).get_shape()) for file in files for name in file.keys()}  # noqa: SIM118


def each(files: Sequence[Any]) -> Iterator[tuple[str, torch.Tensor]]:
    for file in files:
        for name in file.keys():  # noqa: SIM118 - it is no mapping
            yield name, file.get_tensor(name)


def fault_of(given: dict[str, tuple[int, ...]], known: dict[str, tuple[int, ...]], tied: bool) -> str | None:
    """Why they are not the same tensors; None when they are. A tied head may be there or not."""
    optional = {HEAD} if tied else set()
    if missing := sorted(known.keys() - given.keys() - optional):
        return f"tensor {missing[0]} is missing, and {len(missing) - 1} more"
    if unknown := sorted(given.keys() - known.keys() - optional):
        return f"tensor {unknown[0]} is not of this model, and {len(unknown) - 1} more"
    for name in sorted(given.keys() & known.keys()):
        if given[name] != known[name]:
            return f"tensor {name} has shape {given[name]}; this model has {known[name]}"
    return None
