"""The queue's books as its ledger leaves them: of a run that is not up.

Guaranteed: the index's own recovery makes them, so the states are those that the queue had when the last record became
durable; groups that ran then wait to be issued again. Reads only. The bytes that would be reserved for these are not
known here: they depend on the task's prompts.
"""

from pathlib import Path

import msgspec

from streamrl.buffers.index.fence import WriterFence
from streamrl.buffers.index.replay_index import ReplayIndex
from streamrl.buffers.ledger.facts import ledger_facts
from streamrl.buffers.ledger.ledger import read_ledger
from streamrl.buffers.ledger.records import Quarantined, RunHeader
from streamrl.buffers.recovery.recovery import recover, survey
from streamrl.buffers.rows.records import DataOrder, OldestRow, QueueCounts, QueueSettings
from streamrl.buffers.segments.places import LEDGER_DIR
from streamrl.buffers.segments.reader import SegmentReader
from streamrl.clock import SystemClock
from streamrl.errors import RunFolderError


def last_books(
    run_folder: Path, settings: QueueSettings, order: DataOrder
) -> tuple[QueueCounts, OldestRow | None, list[Quarantined]]:
    """The books, the row that was sampled longest ago of those that wait, and the prompts that are quarantined.

    settings: those of the run; data set, seed and group size are the ledger's own. order: is not asked.

    Raises:
        RunFolderError: there is no ledger. DataError: damage.
    """
    folder = run_folder / LEDGER_DIR
    files = read_ledger(folder) if folder.exists() else []
    headers = [record for file in files for record in file.records if isinstance(record, RunHeader)]
    if not headers:
        raise RunFolderError(f"{run_folder} has no ledger yet in {LEDGER_DIR}: its queue was never opened")
    header = headers[-1]
    settings = msgspec.structs.replace(
        settings, fingerprint=header.fingerprint, seed=header.seed, group_size=header.group_size, rollout_bytes=0
    )
    history, facts = survey(files, settings), ledger_facts(files)
    index = ReplayIndex(settings, order, SystemClock())
    recover(files, history, facts.covered_step, index, WriterFence(), SegmentReader(run_folder))
    index.go_to(facts.next_step)
    return index.counts(history.incarnation), index.oldest(), index.quarantine.listed()
