"""The learner's ranks, and what each does beside its steps: checkpoints, publications.
It imports `services`, `buffers` and `streamrl`.
No loss and no optimizer: `streamrl.learner` has them.
"""
