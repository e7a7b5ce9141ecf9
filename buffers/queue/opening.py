"""A queue's part of the run folder, opened: from what lies there to an index, a fence and a ledger to go on with.

Guaranteed: the opening itself is durable, as an incarnation, before anything else is decided, and so is all that
it was decided from; a run folder that belongs to another run, or whose ledger is damaged, is refused and left as it
was, but for empty folders.
"""

from dataclasses import dataclass
from pathlib import Path

from streamrl.buffers.index.fence import WriterFence
from streamrl.buffers.index.published import PublishedVersions
from streamrl.buffers.index.replay_index import ReplayIndex
from streamrl.buffers.ledger.ledger import Ledger, read_ledger
from streamrl.buffers.ledger.records import (
    LEDGER_SCHEMA,
    Dropped,
    Incarnation,
    Quarantined,
    Record,
    RunHeader,
    Withdrawn,
)
from streamrl.buffers.recovery.recovery import recover, survey
from streamrl.buffers.rows.records import DataOrder, QueueSettings
from streamrl.buffers.segments.places import COMPLETIONS_DIR, LEDGER_DIR, SCORES_DIR
from streamrl.buffers.segments.reader import SegmentReader
from streamrl.buffers.segments.retention import Retention
from streamrl.clock import Clock
from streamrl.system.disk import make_folder, sync_file


@dataclass(frozen=True, slots=True)
class Opened:
    """What a queue starts with. incarnation: 0 for a fresh run, one more with each opening. data_changed: the ledger
    was of another data set so far. retention, published: have seen every record. quarantined: prompts of which it made
    a record."""

    index: ReplayIndex
    fence: WriterFence
    ledger: Ledger
    incarnation: int
    data_changed: bool
    retention: Retention
    published: PublishedVersions
    quarantined: list[Quarantined]


def open_folder(
    run_folder: Path,
    settings: QueueSettings,
    order: DataOrder,
    clock: Clock,
    resume_step: int,
    accept_changed_data: bool = False,
) -> Opened:
    """Start afresh, or recover what the ledger in the run folder says. Arguments and errors: `ReplayQueue.open`."""
    folder = run_folder / LEDGER_DIR
    durable = settings.durability == "disk"
    for relative in (LEDGER_DIR, COMPLETIONS_DIR, SCORES_DIR):
        make_folder(run_folder, relative, durable)
    files = read_ledger(folder)
    index, fence = ReplayIndex(settings, order, clock), WriterFence()
    history = survey(files, settings, accept_changed_data)
    recover(files, history, resume_step, index, fence, SegmentReader(run_folder))
    if files and durable:
        # A process that was killed before its last sync left frames that a power cut could still take back.
        sync_file(files[-1].path)
    previous = files[-1].good_bytes if files else -1
    header = RunHeader(LEDGER_SCHEMA, settings.fingerprint, settings.seed, settings.group_size, previous)
    ledger = Ledger(folder, header, durability=settings.durability, commit_interval_s=settings.commit_interval_s)
    begun = Incarnation(history.incarnation + 1, resume_step)
    written = [ledger.append(begun)]
    if history.withdrawn:
        # A recovery knows it from the header; this is for those who read the ledger and make no index. In one commit
        # with the record before: what that one says must not stand alone.
        written.append(ledger.append(Withdrawn(history.withdrawn, resume_step)))
    dropped = [Dropped(numbers, reason) for reason, numbers in history.dropped.items()]
    failed = index.quarantine.pop_unrecorded()
    quarantined = [record for record in failed if isinstance(record, Quarantined)]
    made: list[Record] = [*dropped, *failed, *index.measured.pop_unrecorded()]
    written += [ledger.append(record) for record in made]
    for durable_at in written:
        durable_at.result()
    retention, published = Retention(run_folder, settings), PublishedVersions()
    for record in [*(record for file in files for record in file.records), begun, *dropped]:
        retention.note(record)
        published.note(record)
    return Opened(index, fence, ledger, begun.number, history.data_changed, retention, published, quarantined)
