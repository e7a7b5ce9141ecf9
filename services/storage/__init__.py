"""A run's second place: its checkpoints under the address of `checkpoint.folder`, beside the run folder.
It imports `streamrl.services.run`, `streamrl.buffers` and `streamrl`.
No actor and no Ray; a store is asked in child processes alone, which end when they take too long.
"""
