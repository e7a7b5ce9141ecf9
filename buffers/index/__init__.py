"""The replay index: what every group is doing, decided without I/O.
It imports `buffers.ledger`, `buffers.rows`, `streamrl.scheduling` and `streamrl.config`.
No file, no clock of its own and no waiting: `buffers.queue` adds them.
"""
