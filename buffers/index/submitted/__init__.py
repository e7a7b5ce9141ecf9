"""What clients submitted: prompts to be generated, and trajectories that are finished and scored.
It imports `streamrl.buffers.index`, `streamrl.buffers.ledger`, `streamrl.buffers.rows` and `streamrl.tasks`.
No I/O: `streamrl.buffers.queue` makes these decisions durable.
"""
