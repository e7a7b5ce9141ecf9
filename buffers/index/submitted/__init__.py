"""What clients submitted: prompts to be generated, and trajectories that are finished and scored.
It imports `buffers.index`, `buffers.ledger`, `buffers.rows` and `streamrl.tasks`.
No I/O: `buffers.queue` makes these decisions durable.
"""
