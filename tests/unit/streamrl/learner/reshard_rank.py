"""One rank that reads a checkpoint, writes one of its own, and says what it holds, for the tests.

    python reshard_rank.py STORE RANK WORLD FROM TO OUT

OUT gets a digest of each tensor of the state, weights and moments, as JSON.
"""

import json
import sys
from pathlib import Path

import torch
from support.learner.learner_rank import make_backend, save

from streamrl.learner.checkpoint import checkpoint
from streamrl.learner.checkpoint.digest import tensor_digest
from streamrl.learner.fsdp import FsdpBackend
from streamrl.learner.parallel.process_group import open_group


def digests(backend: FsdpBackend) -> dict[str, str]:
    """Collective. Of whole tensors, whatever their cut over the ranks."""
    return {name: tensor_digest(tensor) for name, tensor in backend.state_tensors()}


def main(store: str, rank: str, world: str, source: str, target: str, out: str) -> None:
    torch.set_num_threads(1)
    group = open_group(int(rank), int(world), Path(store), device=torch.device("cpu"), timeout_s=60)
    info = checkpoint.find_newest(Path(source)).newest
    assert info is not None
    backend = make_backend(group)
    backend.load_state(info.tensor, info.extra)
    held = digests(backend)
    save(backend, Path(target))
    Path(out).write_text(json.dumps({"held": held, "steps_done": backend.steps_done}), encoding="utf-8")
    group.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
