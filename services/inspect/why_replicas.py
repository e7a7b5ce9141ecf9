"""A replica whose log-probs disagree with the learner's more than its peers' do, by the rows of `metrics.jsonl`. Pure.

It has other weights than it says, or computes otherwise: too little to see in the mean over all, and all that it
samples is trained on.
"""

import re
from collections.abc import Sequence
from statistics import median

from streamrl.config.schema.run import Config
from streamrl.scheduling.replica_names import REPLICA_NAME
from streamrl.services.inspect.findings import Finding, Row, values

NEWEST = 20
"""Rows that are looked at: a drift is of the present. Their median counts, since one far token is no drift."""
LEAST = 5
"""Rows that a figure needs to be one."""
DRIFT_KL = 0.01
"""Below it is what rounding and the age of rows explain."""
DRIFT_TIMES = 3.0
"""So many times its peers' median: rows of one replica may be some steps older than those of another."""
_KEY = re.compile(rf"mismatch/({REPLICA_NAME})/kl")


def drifting_replica(rows: Sequence[Row], _: Config) -> Finding | None:
    """The one that is furthest from its peers; None where there are none to compare it with."""
    figures = _figures(rows[-NEWEST:])
    if len(figures) < 2:
        return None
    worst = max(figures, key=lambda name: figures[name])
    peers = median(figure for name, figure in figures.items() if name != worst)
    own = figures[worst]
    if own < DRIFT_KL or own < DRIFT_TIMES * peers:
        return None
    text = (
        f"{worst} gives other probabilities than the learner (KL {own:.3g} a token; its peers' median is {peers:.3g}): "
        "it drifts; compare its node, device and engine with its peers'"
    )
    return Finding("drifting replica", text, {f"mismatch/{worst}/kl": own, "peers_median": peers})


def _figures(rows: Sequence[Row]) -> dict[str, float]:
    """The figure of each replica that has one, by name."""
    found = {match[1]: values(rows, key) for key in _keys(rows) if (match := _KEY.fullmatch(key))}
    return {name: median(given) for name, given in found.items() if len(given) >= LEAST}


def _keys(rows: Sequence[Row]) -> list[str]:
    return sorted({key for row in rows for key in row})
