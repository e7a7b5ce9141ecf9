"""One rank of a warm-up with steps of reinforcement learning behind it, under one backend after the other.

    python warm_up_rank.py STORE RANK WORLD OUT

OUT gets, for each backend and layout, the losses of all steps and what the second training began with, as JSON.
"""

import json
import sys
import warnings
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from support.megatron.cpu_shim import cuda_is_cpu
from support.megatron.models import small_rows
from support.megatron.parity_rank import own_packs
from support.megatron.state_rank import DATA, PIPELINE, TENSOR, Ranks, ranks_of, saved

from streamrl.config.schema.run import WarmupConfig
from streamrl.learner.batch.rows import count_targets
from streamrl.learner.fsdp import FsdpBackend
from streamrl.learner.objectives import nll_loss
from streamrl.learner.parallel.rank_mesh import RowRank
from streamrl.learner.supervised.warmup import Warmup, warmup_optimizer
from streamrl.models.tokenizer import TextTokenizer, load_tokenizer, write_character_tokenizer
from streamrl.tasks.arithmetic import ArithmeticTask

WARM_UP, STEPS = 12, 20
SETTINGS = WarmupConfig(max_steps=WARM_UP, batch_size=16, lr=3e-3, eval_every=100)


def trained(opened: AbstractContextManager[Any], tokenizer: TextTokenizer) -> dict[str, Any]:
    with opened as backend:
        losses: list[float] = []
        with supervised(backend) as trainer:
            Warmup(
                trainer,
                SETTINGS,
                ArithmeticTask(),
                tokenizer,
                row_rank=RowRank(*ranks_of(backend), answers=True),
                hidden_size=32,
                evaluate=lambda: 0.0,
                held_apart=range(10),
                seed=0,
                micro_batch_tokens=60,
            ).run(lambda progress: losses.append(progress.loss))
            left, _ = saved(trainer)
        begun, extra = saved(backend)
        for _ in range(STEPS):
            rows = small_rows(backend.steps_done)
            packs = own_packs(rows, *ranks_of(backend))[1]
            losses.append(backend.step(packs, count_targets(rows))["loss/policy"])
        return {
            "losses": losses[1:],
            "weights_left": all(torch.equal(left[name], whole) for name, whole in begun.items()),
            "begun_with": sorted({name.split("/")[0] for name in begun}),
            "steps_done": extra["steps_done"],
        }


def supervised(backend: Any) -> AbstractContextManager[Any]:
    optimizer = warmup_optimizer(SETTINGS)
    if isinstance(backend, FsdpBackend):
        return nullcontext(FsdpBackend(backend.policy, nll_loss, optimizer, WARM_UP))
    return backend.supervised(nll_loss, optimizer, WARM_UP)


def main(store: str, rank: str, world: str, out: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    folder = Path(f"{store}.tokenizer.{rank}")
    folder.mkdir()
    write_character_tokenizer("0123456789+=", 16, folder)
    tokenizer = load_tokenizer(folder)
    ranks = Ranks(store, int(rank))
    with cuda_is_cpu():
        found = {
            "fsdp": trained(ranks.fsdp("qwen3"), tokenizer),
            "tensor": trained(ranks.megatron("qwen3", TENSOR), tokenizer),
            "pipeline": trained(ranks.megatron("qwen3", PIPELINE), tokenizer),
            "data": trained(ranks.megatron("qwen3", DATA), tokenizer),
            "bfloat16": trained(ranks.megatron("qwen3", PIPELINE, torch.bfloat16), tokenizer),
            "bfloat16_shared_out": trained(ranks.megatron("qwen3", DATA, torch.bfloat16), tokenizer),
        }
    Path(out).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
