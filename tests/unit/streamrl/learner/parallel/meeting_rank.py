"""One rank of a group that meets at an address of rank 0's.

    python meeting_rank.py STORE RANK WORLD OUT

Rank 0 tells the others the place by the file STORE.
"""

import json
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch

from streamrl.learner.parallel.meeting import Meeting, listen
from streamrl.learner.parallel.process_group import open_group

ADDRESS = "127.0.0.1"
LIMIT_S = 60


def main(store: str, rank: str, world: str, out: str) -> None:
    told = Path(store)
    if rank == "0":
        meeting = listen(ADDRESS, timedelta(seconds=LIMIT_S))
        told.with_suffix(".new").write_text(meeting.place)
        told.with_suffix(".new").rename(told)
    else:
        while not told.exists():
            time.sleep(0.01)
        meeting = Meeting(told.read_text(), ADDRESS)
    group = open_group(int(rank), int(world), meeting, device=torch.device("cpu"), timeout_s=LIMIT_S)
    found = {"sum": int(group.sum(torch.tensor([int(rank) + 1]))), "interface": meeting.interface}
    group.close()
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
