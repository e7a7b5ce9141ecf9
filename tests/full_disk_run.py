"""A real run on a small disk that another program fills to the last byte, and empties when the run has paused a while:
`python full_disk_run.py FOLDER RANKS`, where FOLDER is a disk of its own and RANKS the number of learner ranks. Prints
one JSON object: exit code, notices, steps, trained groups.
"""

import contextlib
import json
import sys
from pathlib import Path

from support.runs.live_run import STREAMRL, live_run, prepare

from streamrl.buffers.ledger.ledger import read_ledger
from streamrl.buffers.ledger.records import Step
from streamrl.buffers.segments.places import LEDGER_DIR
from streamrl.observability.metrics import read_metrics

OVERRIDES = (
    *("--rollout.engine", "scripted", "--eval.every", "1000", "--checkpoint.every", "5", "--learner.steps", "100"),
    *("--deadlines.rollout_s", "8", "--deadlines.step_s", "8", "--deadlines.checkpoint_s", "8"),
    *("--reward.timeout_s", "4"),
    *("--queue.min_free_bytes", "30000000", "--queue.segment_bytes", "266240"),
)
HEARTBEATS = 12
"""How long it stays full, in heartbeats of the controller, about a second each: longer than any deadline."""


def fill(path: Path) -> None:
    """Take every byte that is left, while others write too."""
    with path.open("wb", buffering=0) as file:
        for size in (2**20, 2**12):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)):
                    pass


def main(folder: Path, ranks: str) -> None:
    prepare(folder)
    ballast = folder / "ballast"
    with live_run(folder, STREAMRL, "full", *OVERRIDES, "--learner.num_workers", ranks) as run:
        run.until_step(10)
        fill(ballast)
        for _ in range(HEARTBEATS):
            run.read_until(lambda event: event["kind"] == "replicas")
        full_at = run.steps()[-1]["step"]
        ballast.unlink()
        code, err = run.end()
    lines = read_metrics(run.folder / "metrics.jsonl")
    told = {"code": code, "err": err[-2000:], "full_at": full_at, "notices": run.notices()}
    steps = [line["step"] for line in lines if "loss/policy" in line]
    print(json.dumps({**told, "steps": steps, "trained": trained(run.folder)}))


def trained(folder: Path) -> list[int]:
    """The numbers of all groups that the ledger says were trained."""
    records = [record for file in read_ledger(folder / LEDGER_DIR) for record in file.records]
    return [number for record in records if isinstance(record, Step) for number in record.numbers]


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
