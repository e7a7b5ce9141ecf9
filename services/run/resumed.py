"""What a resume found, by count, as one event: figures for scripts and a sentence for people. Pure."""

from typing import Any

from streamrl.observability.plural import how_many

EVENT = "resumed"


def resumed_event(checkpoint: int | None, found: dict[str, Any], passed_over: list[str]) -> dict[str, Any]:
    """The event `resumed`, without its kind.

    checkpoint: step of the one that was loaded; None when there was none, and training begins anew on what the queue
    has. found: `streamrl.buffers.rows.records.Found` as plain values. passed_over: checkpoints that were not taken,
    with the reasons.
    """
    facts = {**found, "checkpoint": checkpoint, "passed_over": passed_over}
    return {**facts, "text": _sentence(facts)}


def worth_telling(checkpoint: int | None, found: dict[str, Any], passed_over: list[str]) -> bool:
    """Whether there was anything to resume: not in a fresh run."""
    counts = ("steps_again", "rows_waiting", "groups_again")
    return checkpoint is not None or bool(passed_over) or any(found[name] for name in counts)


def _sentence(facts: dict[str, Any]) -> str:
    parts = [
        how_many(facts["steps_again"], "later step is", "later steps are") + " trained again with the same rows",
        how_many(facts["rows_waiting"], "accepted row waits", "accepted rows wait"),
        how_many(facts["groups_again"], "unfinished group is", "unfinished groups are")
        + f" generated again ({how_many(facts['rollouts_again'], 'rollout', 'rollouts')})",
    ]
    if facts["data_changed"]:
        discarded = how_many(facts["rows_discarded"], "row", "rows")
        parts.append(f"the data set is another one, so {discarded} of unfinished groups are discarded")
    if facts["passed_over"]:
        parts.append(how_many(len(facts["passed_over"]), "checkpoint was", "checkpoints were") + " passed over")
    return f"{_beginning(facts['checkpoint'])}: " + ", ".join(parts)


def _beginning(checkpoint: int | None) -> str:
    return "no checkpoint to resume from" if checkpoint is None else f"resumed from the checkpoint of step {checkpoint}"
