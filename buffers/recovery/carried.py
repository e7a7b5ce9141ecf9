"""What of a ledger goes along with a checkpoint to where the rows are not: the decisions, without what they are about.

A machine that is gone took the log files with it. What a queue needs to go on from step s elsewhere are the numbers:
which groups were issued for which prompts, and which were trained at the steps before s, dropped, submitted. A
group that was under way then is generated again under its number. Pure.

Guarantees: a queue that is opened on these records goes on at s, trains no group twice that was trained before s, and
asks for no row. Everything that the ledger says after the last time that step s - 1 was trained is left out, as if the
run had ended there: what is made from it again is decided again.
"""

from collections.abc import Iterable, Iterator

from streamrl.buffers.ledger.records import (
    Accepted,
    Covered,
    Declined,
    Dropped,
    Failed,
    Gathered,
    Incarnation,
    Measured,
    Offered,
    Quarantined,
    Record,
    Rescored,
    RunHeader,
    Scored,
    Step,
    Writer,
)

LOST_WITH_MACHINE = "lost_with_machine"
"""Why a trajectory of a client is not trained whose rows lay on the machine that is gone."""


def carried(records: Iterable[Record], step: int) -> list[Record]:
    """What goes along with a checkpoint of `step`, in order, without a header. records: of the whole ledger."""
    past = _past(list(records), step)
    trained = {
        number for record in past if isinstance(record, Step) and record.step < step for number in record.numbers
    }
    kept = [record for record in _of_last_data_set(past) if _goes_along(record, step)]
    return [*kept, *_lost_trajectories(past, trained), *([Covered(step)] if step else [])]


def _past(records: list[Record], step: int) -> list[Record]:
    """Up to the record that trained the step before, the last of its kind; of step 0 only who was there."""
    if step == 0:
        return [record for record in records if isinstance(record, Incarnation | Writer)]
    places = [place for place, one in enumerate(records) if isinstance(one, Step) and one.step == step - 1]
    return records[: places[-1] + 1] if places else []


def _of_last_data_set(records: list[Record]) -> Iterator[Record]:
    """Without what was found out about prompts of a data set that is another one now."""
    fingerprints = [one.fingerprint for one in records if isinstance(one, RunHeader)]
    now = fingerprints[-1] if fingerprints else ""
    fingerprint = now
    for record in records:
        if isinstance(record, RunHeader):
            fingerprint = record.fingerprint
        elif fingerprint == now or not isinstance(record, Failed | Quarantined | Measured):
            yield record


def _goes_along(record: Record, step: int) -> bool:
    """Rows and verdicts do not; of a lost branch the later steps do not. What says that rows were taken back does: it
    says as well how long the group may wait."""
    if isinstance(record, Step):
        return record.step < step
    return not isinstance(record, Accepted | Scored | Rescored | Covered)


def _lost_trajectories(records: list[Record], trained: set[int]) -> Iterator[Record]:
    """Nobody can make again what clients made: what waits is declined, a group of them that was not trained dropped."""
    count, ended, groups = 0, set[int](), set[int]()
    dropped: set[int] = set()
    for record in records:
        match record:
            case Offered():
                count += 1
            case Gathered(number, items):
                ended.update(items)
                groups.add(number)
            case Declined(items):
                ended.update(items)
            case Dropped(numbers):
                dropped.update(numbers)
            case _:
                pass
    if waiting := [item for item in range(count) if item not in ended]:
        yield Declined(waiting, LOST_WITH_MACHINE)
    if left := sorted(groups - trained - dropped):
        yield Dropped(left, LOST_WITH_MACHINE)
