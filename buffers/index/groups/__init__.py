"""One group of rollouts and what is decided about it: filtered, ready, leased, suspected, quarantined.
It imports `streamrl.buffers.ledger`, `streamrl.buffers.rows`, `streamrl.algorithms` and `streamrl.scheduling`.
No I/O and no clock: the index above calls these with what it knows.
"""
