"""A rank of a group whose rank 0 comes late: what the others waited for reaches them all the same."""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from streamrl.learner.parallel.process_group import open_group

LIMIT_S = 2.0
LATE_S = 2.5 * LIMIT_S


def main(store: str, rank: str, world: str, out: str) -> None:
    torch.set_num_threads(1)
    # Imports take longer than the limit on a busy machine: all are here before the group is opened.
    meeting = dist.FileStore(f"{store}_meeting", int(world))
    meeting.set(rank, "here")
    meeting.wait([str(each) for each in range(int(world))], timedelta(seconds=120))
    group = open_group(int(rank), int(world), Path(store), device=torch.device("cpu"), timeout_s=LIMIT_S)
    with ThreadPoolExecutor(1) as beside:
        if group.rank == 0:
            time.sleep(LATE_S)
        held = beside.submit(group.wait_for_first, True)
        heard = group.broadcast_bytes(b"a plan" if group.rank == 0 else None)
        group.wait_for_first()
        held.result()
    everyone = group.sum(torch.ones(1)).item()
    Path(out).write_text(json.dumps({"heard": heard.decode(), "everyone": everyone}), encoding="utf-8")
    group.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
