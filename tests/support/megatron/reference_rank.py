"""One rank of a learner that is held to a reference, or taught by one, under one backend after the other.

    python reference_rank.py STORE RANK WORLD OUT

OUT gets, for each reference and backend, the metrics of all steps, as JSON.
"""

import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from support.megatron.cpu_shim import cuda_is_cpu
from support.megatron.models import small_model, small_rows
from support.megatron.parity_rank import own_packs
from support.megatron.state_rank import DATA, PIPELINE, SETTINGS, TENSOR, WORLD, far_apart, ranks_of, saved, train
from transformers import PreTrainedModel

from streamrl.config.estimates.megatron import MegatronLayout
from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.learner import MegatronConfig
from streamrl.learner.batch.rows import count_targets
from streamrl.learner.fsdp import build as build_fsdp
from streamrl.learner.parallel.process_group import open_group
from streamrl.learner.references.averaged import AveragedPolicy
from streamrl.learner.references.frozen import FrozenPolicy

STEPS = 5
MOVES = {"every": 2, "decay": 0.5}
HELD = AlgorithmConfig(kl_coef=0.5)
KINDS = {"frozen": HELD, "teacher": AlgorithmConfig(loss="opd"), "average": HELD}
LAYOUTS = {"tensor": TENSOR, "pipeline": PIPELINE, "data": DATA}
CPU = torch.device("cpu")


def other_model(family: str = "qwen3") -> PreTrainedModel:
    """The policy's, moved a little."""
    model = small_model(family)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


class Opened:
    """Opens learners of one kind of reference, each group at a file of its own."""

    def __init__(self, store: str, rank: int, kind: str) -> None:
        self._store, self._rank, self._kind, self._opened = store, rank, kind, 0

    def _path(self) -> Path:
        self._opened += 1
        return Path(f"{self._store}.{self._kind}.{self._opened}")

    def backend(self, layout: MegatronConfig | None) -> AbstractContextManager[Any]:
        return self._fsdp() if layout is None else self._megatron(layout)

    @contextmanager
    def _fsdp(self) -> Iterator[Any]:
        group = open_group(self._rank, WORLD, self._path(), device=CPU, timeout_s=60)
        average = self._kind == "average"
        arguments = other_model, group, torch.float32
        held = AveragedPolicy(*arguments, **MOVES) if average else FrozenPolicy(*arguments)
        settings = {**SETTINGS, "algorithm": KINDS[self._kind]}
        yield build_fsdp(
            small_model("qwen3"), group=group, reference=held, average=held if average else None, **settings
        )
        group.close()

    @contextmanager
    def _megatron(self, layout: MegatronConfig) -> Iterator[Any]:
        from streamrl.learner.megatron.backend import build
        from streamrl.learner.megatron.ranks import open_ranks
        from streamrl.learner.megatron.references import AveragedReference, MegatronReference

        ranks = open_ranks(self._rank, self._path(), MegatronLayout.of(layout, WORLD), device=CPU, timeout_s=60)
        arguments = other_model, ranks, layout, torch.float32
        held = AveragedReference(*arguments, **MOVES) if self._kind == "average" else MegatronReference(*arguments)
        settings = {**SETTINGS, "algorithm": KINDS[self._kind]}
        yield build(small_model("qwen3"), megatron=layout, ranks=ranks, reference=held, **settings)
        ranks.close()


def steps(backend: Any, count: int = STEPS) -> list[dict[str, float]]:
    metrics = []
    for _ in range(count):
        rows = small_rows(backend.steps_done)
        found = backend.step(own_packs(rows, *ranks_of(backend))[1], count_targets(rows))
        metrics.append({name: value for name, value in found.items() if not name.startswith("time/")})
    return metrics


def of_kind(opened: Opened) -> dict[str, Any]:
    found = {}
    for name, layout in {"fsdp": None, **LAYOUTS}.items():
        with opened.backend(layout) as backend:
            found[name] = steps(backend)
    return found


def average_goes_on(opened: Opened, first: MegatronConfig | None, second: MegatronConfig | None) -> dict[str, Any]:
    """Three steps, then two more by either."""
    with opened.backend(first) as backend:
        train(backend, 3)
        state = saved(backend)
        size = backend.state_bytes
        train(backend, 2)
        end = saved(backend)
    with opened.backend(second) as backend:
        backend.load_state(state[0].__getitem__, state[1])
        loaded = saved(backend)
        train(backend, 2)
        return {
            "has_average": any(name.startswith("reference/") for name in state[0]),
            "bytes": size == sum(tensor.nbytes for tensor in state[0].values()),
            "equal": all(torch.equal(loaded[0][name], tensor) for name, tensor in state[0].items()),
            "apart": far_apart(end, saved(backend)),
        }


def main(store: str, rank: str, world: str, out: str) -> None:
    assert int(world) == WORLD
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with cuda_is_cpu():
        found: dict[str, Any] = {kind: of_kind(Opened(store, int(rank), kind)) for kind in KINDS}
        average = Opened(f"{store}.again", int(rank), "average")
        found["tensor_to_pipeline"] = average_goes_on(average, TENSOR, PIPELINE)
        found["data_to_fsdp"] = average_goes_on(average, DATA, None)
        found["fsdp_to_tensor"] = average_goes_on(average, None, TENSOR)
    Path(out).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
