"""`streamrl queue`: how the queue of a run stands, asked of the run while it is up, else read from its ledger.

Guarantees: reads only; both ways give the same facts. It needs Arrow, to find out when the oldest row was sampled.
"""

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from streamrl.buffers.index.groups.quarantine import shown
from streamrl.buffers.ledger.live_files import read_again
from streamrl.buffers.recovery.last_books import last_books
from streamrl.buffers.rows.records import OldestRow, QueueSettings
from streamrl.buffers.segments.places import COMPLETIONS_DIR, LEDGER_DIR, SCORES_DIR, SPARE_DIR
from streamrl.buffers.segments.reader import SegmentReader
from streamrl.config import Config, load
from streamrl.errors import DataError
from streamrl.services.run.control.client import ControlClient
from streamrl.services.run.folder import RunFolder
from streamrl.services.run.view_state import human_bytes, human_seconds
from streamrl.tasks.order import PromptOrder

_FOLDERS = {"completions": COMPLETIONS_DIR, "scores": SCORES_DIR, "ledger": LEDGER_DIR, "spare": SPARE_DIR}
_BLOCK_BYTES = 512
"""What `st_blocks` counts in, whatever the disk's own blocks are."""
Facts = dict[str, Any]


def show(run: RunFolder, *, as_json: bool) -> None:
    """Print how the queue stands. Errors: `queue_facts`."""
    facts = queue_facts(run)
    print(json.dumps(facts) if as_json else "\n".join(as_lines(facts)))


def queue_facts(run: RunFolder) -> Facts:
    """How the queue stands: `queue` (`streamrl.buffers.rows.records.QueueCounts`), `oldest`, `disk` (bytes by log),
    `source`, `durability` (what it promises, in words).

    Raises RunFolderError when the queue was never opened, DataError for damage.
    """
    asked = _live_facts(run)
    counts, oldest = (asked, asked.pop("oldest")) if asked is not None else _last(run)
    facts = {"run": run.name, "folder": str(run.path), "state": str(run.state())}
    disk = {name: _bytes_under(run.path / folder) for name, folder in _FOLDERS.items()}
    source = "run" if asked is not None else "ledger"
    facts |= {"source": source, "durability": load(run.config_path).promise}
    return {**facts, "queue": counts, "oldest": _dated(run, oldest), "disk": disk}


def as_lines(facts: Facts) -> list[str]:
    """The same for a terminal."""
    queue, disk = facts["queue"], facts["disk"]
    how = "as the run says" if facts["source"] == "run" else "as its ledger leaves it"
    states = ("running", "ready", "leased", "trained")
    groups = [f"{queue[f'groups_{state}']} {state}" for state in states]
    rows = ("pending", "complete", "scored", "ready", "leased", "trained", "dropped")
    dropped = queue["groups_dropped"]
    held = f"{human_bytes(queue['bytes_held'])} held, {human_bytes(queue['bytes_reserved'])} reserved"
    lines = {
        "queue": f"{facts['run']}: {facts['state']}, {how}",
        "durability": facts["durability"],
        "next step": f"{queue['next_step']}, incarnation {queue['incarnation']}",
        "groups": f"{queue['groups_issued']} issued: {', '.join(groups)}, {sum(dropped.values())} dropped",
        "rows": ", ".join(f"{queue[f'rows_{state}']} {state}" for state in rows),
        "unscored": f"{queue['rows_unscored']} rows",
        "bytes": f"{held}, of {human_bytes(queue['byte_budget'])}",
        "on disk": ", ".join(f"{name} {human_bytes(size)}" for name, size in disk.items()),
        "oldest row": _oldest_line(facts["oldest"], queue["next_step"]),
        "quarantined": _quarantined_line(queue),
        "dropped groups": ", ".join(f"{count} {reason}" for reason, count in sorted(dropped.items())) or "none",
    }
    return [f"{name:<16}{text}" for name, text in lines.items()]


def _live_facts(run: RunFolder) -> Facts | None:
    """What the run itself says; None when it is not up, or its queue is not open yet."""
    if run.owner() is None:
        return None
    with ControlClient.of(run) as client:
        return client.ask("status").get("queue")


def _last(run: RunFolder) -> tuple[Facts, Facts | None]:
    config = load(run.config_path)
    order = PromptOrder(1, config.seed)
    counts, oldest, quarantined = read_again(lambda: last_books(run.path, _settings(config), order))
    extra = {"bytes_used": counts.bytes_used, "rows_waiting": counts.rows_waiting, "quarantined": shown(quarantined)}
    return {**msgspec.to_builtins(counts), **extra}, msgspec.to_builtins(oldest)


def _settings(config: Config) -> QueueSettings:
    return QueueSettings(
        group_size=config.rollout.group_size,
        groups_per_step=config.learner.groups_per_step,
        max_staleness=config.learner.max_staleness,
        byte_budget=config.queue.byte_budget,
        rollout_bytes=0,
        filter=config.learner.filter,
        mask_truncated=config.learner.overlong.mask_truncated,
        greedy_sample=config.greedy_sample,
        components=config.learner.algorithm.component_names,
        quarantine_after=config.rollout.quarantine_after,
        curriculum=config.data.curriculum,
    )


def _dated(run: RunFolder, oldest: Facts | None) -> Facts | None:
    """The oldest row with the seconds since it was sampled; None for these where its segment is not in this folder."""
    if oldest is None:
        return None
    row = msgspec.convert(oldest, OldestRow)
    try:
        finished = SegmentReader(run.path).read(row.frame).column("finished_ns")[row.row].as_py()
    except DataError:
        return {**oldest, "age_s": None}
    return {**oldest, "age_s": max(0.0, (time.time_ns() - finished) / 1e9)}


def _oldest_line(oldest: Facts | None, next_step: int) -> str:
    if oldest is None:
        return "none waits"
    version = oldest["oldest_step"]
    behind = f"of step {version}, {max(0, next_step - version)} behind" if version >= 0 else "without a token"
    age = "" if oldest["age_s"] is None else f", finished {human_seconds(oldest['age_s'])} ago"
    return f"group {oldest['number']}, sample {oldest['sample_index']}, {behind}{age}"


def _quarantined_line(queue: Facts) -> str:
    """How many prompts, and why the newest."""
    count = queue["prompts_quarantined"]
    if not count:
        return "no prompt"
    newest = queue["quarantined"][-1]
    prompts = "prompt" if count == 1 else "prompts"
    passed = f"passed over {queue['prompts_passed_over']} times"
    return f"{count} {prompts}, {passed}; the newest is item {newest['item']}: {newest['reason']}"


def _bytes_under(folder: Path) -> int:
    """Bytes of the disk that the files of a folder take, what is allocated ahead included."""
    total = 0
    for path in folder.glob("*"):
        # A file may be let go at this moment.
        with suppress(FileNotFoundError):
            total += path.stat().st_blocks * _BLOCK_BYTES
    return total
