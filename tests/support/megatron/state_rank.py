"""One rank of a learner whose state goes from layout to layout, and from backend to backend.

    python state_rank.py STORE RANK WORLD OUT

OUT gets what was found as JSON.
"""

import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from support.megatron.cpu_shim import cuda_is_cpu
from support.megatron.models import small_model, small_rows
from support.megatron.parity_rank import own_packs

from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.learner import MegatronConfig, OptimizerConfig
from streamrl.errors import NonFiniteError
from streamrl.learner.batch.mini_batch_cut import mini_batch_of
from streamrl.learner.batch.mini_batches import MiniBatch
from streamrl.learner.batch.rows import count_targets, select_rows
from streamrl.learner.fsdp import build as build_fsdp
from streamrl.learner.parallel.process_group import open_group

WORLD = 2
SETTINGS: dict[str, Any] = {
    "optimizer": OptimizerConfig(lr=1e-3, warmup_steps=1, weight_decay=0.01, eps=1e-6),
    "algorithm": AlgorithmConfig(),
    "total_steps": 10,
    "temperature": 0.9,
}
TENSOR = MegatronConfig(tensor_parallel=2)
PIPELINE = MegatronConfig(pipeline_parallel=2, distributed_optimizer=False)
DATA = MegatronConfig()
EXPERT = MegatronConfig(expert_parallel=2)
EXPERT_TENSOR = MegatronConfig(
    tensor_parallel=2, sequence_parallel=True, expert_tensor_parallel=2, distributed_optimizer=False
)
State = tuple[dict[str, torch.Tensor], dict[str, Any]]


class Ranks:
    """Opens groups of the same ranks one after the other, each at a file of its own."""

    def __init__(self, store: str, rank: int) -> None:
        self._store, self._rank, self._opened = store, rank, 0

    def _path(self) -> Path:
        self._opened += 1
        return Path(f"{self._store}.{self._opened}")

    @contextmanager
    def megatron(self, family: str, layout: MegatronConfig, dtype: torch.dtype = torch.float32) -> Iterator[Any]:
        from streamrl.config.estimates.megatron import MegatronLayout
        from streamrl.learner.megatron.backend import build
        from streamrl.learner.megatron.ranks import open_ranks

        ranks = open_ranks(
            self._rank, self._path(), MegatronLayout.of(layout, WORLD), device=torch.device("cpu"), timeout_s=60
        )
        yield build(small_model(family), megatron=layout, ranks=ranks, dtype=dtype, **SETTINGS)
        ranks.close()

    @contextmanager
    def fsdp(self, family: str) -> Iterator[Any]:
        group = open_group(self._rank, WORLD, self._path(), device=torch.device("cpu"), timeout_s=60)
        yield build_fsdp(small_model(family), group=group, **SETTINGS)
        group.close()


def ranks_of(backend: Any) -> tuple[int, int]:
    """(whose rows this rank has, of how many)."""
    ranks = backend.ranks if hasattr(backend, "ranks") else backend.group
    return ranks.data_rank, ranks.data_size


def train(backend: Any, steps: int) -> None:
    for _ in range(steps):
        rows = small_rows(backend.steps_done)
        backend.step(own_packs(rows, *ranks_of(backend))[1], count_targets(rows))


def saved(backend: Any) -> State:
    return {name: tensor.clone() for name, tensor in backend.state_tensors()}, backend.state_extra()


def far_apart(one: State, other: State) -> float:
    assert one[0].keys() == other[0].keys()
    return max((other[0][name] - tensor).abs().max().item() for name, tensor in one[0].items())


def goes_on_elsewhere(ranks: Ranks, family: str, first: MegatronConfig, second: MegatronConfig) -> dict[str, Any]:
    """Three steps, then two more in either layout."""
    with ranks.megatron(family, first) as backend:
        train(backend, 3)
        state = saved(backend)
        train(backend, 2)
        end = saved(backend)
    with ranks.megatron(family, second) as backend:
        backend.load_state(state[0].__getitem__, state[1])
        loaded, steps_done = saved(backend), backend.steps_done
        train(backend, 2)
        return {
            "equal": all(torch.equal(loaded[0][name], tensor) for name, tensor in state[0].items()),
            "steps_done": steps_done,
            "apart": far_apart(end, saved(backend)),
        }


def goes_on_in_fsdp(ranks: Ranks) -> dict[str, Any]:
    """And back again."""
    with ranks.megatron("qwen3", TENSOR) as backend:
        train(backend, 2)
        state = saved(backend)
    with ranks.fsdp("qwen3") as backend:
        backend.load_state(state[0].__getitem__, state[1])
        train(backend, 1)
        middle = saved(backend)
        train(backend, 1)
        end = saved(backend)
    with ranks.megatron("qwen3", PIPELINE) as backend:
        backend.load_state(middle[0].__getitem__, middle[1])
        train(backend, 1)
        return {"apart": far_apart(end, saved(backend))}


def several_updates(ranks: Ranks) -> dict[str, Any]:
    """Two mini-batches, trained on twice each, by either backend; the second has no row for one of the ranks."""
    found = []
    for opened in (ranks.fsdp("qwen3"), ranks.megatron("qwen3", DATA), ranks.megatron("qwen3", PIPELINE)):
        with opened as backend:
            metrics = backend.step_batch(two_mini_batches(backend), epochs=2)
            found.append((metrics, saved(backend)))
    (theirs, end), *ours = found
    apart = max(abs(metrics[name] - theirs[name]) for metrics, _ in ours for name in theirs if name[:5] != "time/")
    return {"metrics": apart, "apart": max(far_apart(end, state) for _, state in ours)}


def two_mini_batches(backend: Any) -> list[MiniBatch]:
    rows = small_rows(0)
    number_N = mini_batch_of(rows.group, 2)
    parts = [select_rows(rows, np.flatnonzero(number_N == number)) for number in range(2)]
    parts[1] = select_rows(parts[1], np.arange(1))
    return [MiniBatch([own_packs(part, *ranks_of(backend))[1]], count_targets(part)) for part in parts]


def in_bfloat16(ranks: Ranks) -> dict[str, Any]:
    """What is published is what the forward computes with: the optimizer's float32, rounded."""
    found = []
    for layout in (TENSOR, PIPELINE, DATA):
        with ranks.megatron("qwen3", layout, torch.bfloat16) as backend:
            train(backend, 2)
            published, (state, _) = dict(backend.iter_hf_weights()), saved(backend)
            found.append(all(torch.equal(state[f"model/{n}"].bfloat16(), whole) for n, whole in published.items()))
            found.append(state["model/model.norm.weight"].dtype == torch.float32)
    return {"rounded": found}


def one_rank_is_broken(ranks: Ranks, rank: int) -> dict[str, Any]:
    """A NaN in one rank's part of a weight; what a step says, and that it changed nothing."""
    found = []
    for layout in (TENSOR, PIPELINE, DATA):
        with ranks.megatron("qwen3", layout) as backend:
            train(backend, 1)
            if rank == WORLD - 1:
                params = backend._weights.params
                place = next(name for name in params if name.endswith("linear_fc2.weight"))
                with torch.no_grad():
                    params[place][0, 0] = float("nan")
            before = {name: param.detach().clone() for name, param in backend._weights.params.items()}
            said = []
            for act in (lambda backend=backend: train(backend, 1), backend.weight_digest):
                try:
                    act()
                except NonFiniteError as error:
                    said.append(str(error))
            same = [
                torch.equal(before[name].nan_to_num(7.0), param.nan_to_num(7.0))
                for name, param in backend._weights.params.items()
            ]
            found.append({"said": said, "same": all(same), "steps_done": backend.steps_done})
    return {"layouts": found}


def beside_a_step(ranks: Ranks) -> dict[str, Any]:
    """A snapshot is gathered in another thread while a step is trained."""
    from concurrent.futures import ThreadPoolExecutor

    found = []
    for layout in (TENSOR, PIPELINE, DATA):
        with ranks.megatron("qwen3", layout) as backend, ThreadPoolExecutor(1) as thread:
            for _ in range(3):
                before, snapshot = dict(backend.policy.iter_version()), backend.policy.snapshot()
                before = {name: whole.clone() for name, whole in before.items()}
                gathering = thread.submit(lambda taken, of=backend.policy: dict(of.gather(taken)), snapshot)
                train(backend, 1)
                gathered = gathering.result()
                found.append(all(torch.equal(before[name], whole) for name, whole in gathered.items()))
    return {"same": found}


def main(store: str, rank: str, world: str, out: str) -> None:
    assert int(world) == WORLD
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    ranks = Ranks(store, int(rank))
    with cuda_is_cpu():
        found = {
            "tensor_to_pipeline": goes_on_elsewhere(ranks, "qwen3", TENSOR, PIPELINE),
            "pipeline_to_data": goes_on_elsewhere(ranks, "qwen2", PIPELINE, DATA),
            "data_to_tensor": goes_on_elsewhere(ranks, "llama", DATA, TENSOR),
            "expert_to_expert_tensor": goes_on_elsewhere(ranks, "qwen3_moe", EXPERT, EXPERT_TENSOR),
            "expert_tensor_to_expert": goes_on_elsewhere(ranks, "mixtral", EXPERT_TENSOR, EXPERT),
            "fsdp": goes_on_in_fsdp(ranks),
            "several_updates": several_updates(ranks),
            "bfloat16": in_bfloat16(ranks),
            "broken": one_rank_is_broken(ranks, int(rank)),
            "beside": beside_a_step(ranks),
        }
    Path(out).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
