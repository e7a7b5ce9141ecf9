"""Ranks of a process group as processes of their own, for tests of what they agree on.

They are forked from one process that has imported what they need (`rank_template.py`). It begins with the first rank of
a test process, and ends with that process.
"""

import json
import multiprocessing
import os
import time
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from support.repository import TESTS


def run_ranks(
    program: Path, folder: Path, world: int, *further: Path, timeout_s: float = 250.0
) -> list[dict[str, Any]]:
    """What each rank wrote. The program is given the group's store, its rank, the number of ranks, `further`, and the
    file to write to."""
    outs = [folder / f"{world}_{rank}.json" for rank in range(world)]
    store = folder / f"store_{world}"
    ranks = [_start([program, store, rank, world, *further, out], out) for rank, out in enumerate(outs)]
    ends = time.monotonic() + timeout_s
    try:
        for rank, out in zip(ranks, outs, strict=True):
            rank.join(max(0.0, ends - time.monotonic()))
            assert rank.exitcode == 0, (rank.exitcode, _errors_of(out).read_text(encoding="utf-8"))
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()
            rank.close()
    return [json.loads(out.read_text(encoding="utf-8")) for out in outs]


def _errors_of(out: Path) -> Path:
    """The file beside what a rank writes, of what it says on standard error."""
    return out.with_suffix(".errors")


def _start(words: list[Any], out: Path) -> BaseProcess:
    errors = _errors_of(out)
    errors.touch()
    # Here and not above: it imports torch, and what runs the tests has a use for it only where there are ranks.
    from support.learner.rank_template import be_rank

    _have_template()
    context = multiprocessing.get_context("forkserver")
    rank = context.Process(target=be_rank, args=([str(word) for word in words], dict(os.environ), str(errors)))
    rank.start()
    return rank


def _have_template() -> None:
    """The process that ranks are forked from, unless it is there. It finds what it imports by its environment, and
    threads that an import starts would not be there in what is forked."""
    forkserver.set_forkserver_preload(["support.learner.rank_template"])
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH")))))
        patched.setenv("OMP_NUM_THREADS", "1")
        forkserver.ensure_running()
