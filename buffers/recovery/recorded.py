"""The batches of a run, read back from its ledger: the same groups, in the same order, step by step.

Reads only; the run may be live. Batches are rebuilt by the index's own rules, so they are what the learner got.
"""

from collections.abc import Iterator
from pathlib import Path

from streamrl.buffers.index.fence import WriterFence
from streamrl.buffers.index.replay_index import ReplayIndex
from streamrl.buffers.ledger.ledger import LedgerFile, read_ledger
from streamrl.buffers.ledger.records import Accepted, Rescored, Scored
from streamrl.buffers.recovery.recovery import recover, survey
from streamrl.buffers.rows.records import DataOrder, Lease, QueueSettings
from streamrl.buffers.segments.places import HOME, LEDGER_DIR, node_of
from streamrl.buffers.segments.reader import SegmentReader
from streamrl.clock import SystemClock
from streamrl.errors import RunFolderError


def recorded_leases(run_folder: Path, settings: QueueSettings, order: DataOrder) -> Iterator[Lease]:
    """The lease of each step that was committed, from step 0 on.

    Raises:
        RunFolderError: the run has no ledger, it is of other data, or some of its rows were let go. DataError: damage.
    """
    folder = run_folder / LEDGER_DIR
    files = read_ledger(folder) if folder.exists() else []
    if not files:
        raise RunFolderError(f"{run_folder} has no ledger in {LEDGER_DIR}: nothing was recorded")
    history = survey(files, settings)
    _require_rows(run_folder, files)
    index = ReplayIndex(settings, order, SystemClock())
    recover(files, history, 0, index, WriterFence(), SegmentReader(run_folder), as_trained=True)
    for step in sorted(history.steps):
        lease = index.lease(step)
        if lease is None:
            raise RunFolderError(f"{folder}: the groups of step {step} are not all there any more")
        index.commit(step)
        yield lease


def _require_rows(run_folder: Path, files: list[LedgerFile]) -> None:
    """Refuse a run that has let go of some of its rows."""
    records = (record for file in files for record in file.records)
    named = {record.frame.path for record in records if isinstance(record, Accepted | Scored | Rescored)}
    gone = sorted(path for path in named if node_of(path) == HOME and not (run_folder / path).exists())
    if gone:
        raise RunFolderError(
            f"{run_folder} has not the rows of all its steps any more: {len(gone)} of {len(named)} log files are gone, "
            f'the first of them {gone[0]}; a run keeps them with queue.retain = "all" and a larger queue.disk_budget'
        )
