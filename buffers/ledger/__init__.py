"""The ledger: the queue's decisions, in order, durable.
It imports `streamrl.buffers.rows`, `streamrl.system` and `streamrl.tasks`.
No state of a group: a record says what was decided, and nothing here decides.
"""
