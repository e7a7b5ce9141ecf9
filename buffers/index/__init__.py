"""The replay index: what every group is doing, decided without I/O.
It imports `streamrl.buffers.ledger`, `streamrl.buffers.rows`, `streamrl.scheduling` and `streamrl.config`.
No file, no clock of its own and no waiting: `streamrl.buffers.queue` adds them.
"""
