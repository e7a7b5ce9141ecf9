"""The learner's ranks, and what each does beside its steps: checkpoints, publications.
It imports `streamrl.services`, `streamrl.buffers` and `streamrl`.
No loss and no optimizer: `streamrl.learner` has them.
"""
