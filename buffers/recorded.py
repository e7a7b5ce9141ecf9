"""The batches of a run, read back from its ledger: the same groups, in the same order, step by step.

Reads only; the run may be live. Batches are rebuilt by the index's own rules, so they are what the learner got.
"""

from collections.abc import Iterator
from pathlib import Path

from buffers.fence import WriterFence
from buffers.index import ReplayIndex
from buffers.ledger import read_ledger
from buffers.opening import LEDGER_DIR
from buffers.records import DataOrder, Lease, QueueSettings
from buffers.recovery import recover, survey
from buffers.segment_reader import SegmentReader
from streamrl.clock import SystemClock
from streamrl.errors import RunFolderError


def recorded_leases(run_folder: Path, settings: QueueSettings, order: DataOrder) -> Iterator[Lease]:
    """The lease of each step that was committed, from step 0 on.

    Raises:
        RunFolderError: the run has no ledger, or it is of other data. DataError: damage.
    """
    folder = run_folder / LEDGER_DIR
    files = read_ledger(folder) if folder.exists() else []
    if not files:
        raise RunFolderError(f"{run_folder} has no ledger in {LEDGER_DIR}: nothing was recorded")
    history = survey(files, settings)
    index = ReplayIndex(settings, order, SystemClock())
    recover(files, history, 0, index, WriterFence(), SegmentReader(run_folder))
    for step in sorted(history.steps):
        lease = index.lease(step)
        if lease is None:
            raise RunFolderError(f"{folder}: the groups of step {step} are not all there any more")
        index.commit(step)
        yield lease
