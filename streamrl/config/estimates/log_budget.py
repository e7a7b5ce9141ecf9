"""How the bytes of `observe.log_bytes` are shared out among all that tells of a run. Pure.

    a tenth each   logs, metrics        half a tenth each   events, reports
    two tenths     spans                five tenths         the trace made of the spans

Guarantees: the shares together do not pass the budget, a log, the events and the metrics counted with what they keep
of before. A span takes 40 bytes or more where it is recorded, and up to two and a half times as many in the merged
trace. Whoever writes keeps to its share.
"""

from dataclasses import dataclass

from streamrl.config.estimates.sizes import log_parts
from streamrl.config.schema.run import Config


@dataclass(frozen=True, slots=True)
class LogShares:
    """Bytes. log: of one part's log and its predecessor. spans: of one part's. events, metrics: of the file and what it
    keeps of before. reports: of all files of stacks and of deaths."""

    log: int
    spans: int
    events: int
    metrics: int
    reports: int


def log_shares(config: Config) -> LogShares:
    """What each may take in a run of `config`."""
    total = config.observe.log_bytes
    parts = log_parts(config)
    tenth = total // 10
    half = tenth // 2
    return LogShares(log=tenth // parts, spans=2 * tenth // parts, events=half, metrics=tenth, reports=half)
