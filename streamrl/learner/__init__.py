"""The learner: from packs of rows to a loss, gradients and an update of sharded weights; `fsdp` is the way in.
It imports `streamrl.algorithms`, `streamrl.config`, `streamrl.observability` and torch.
No queue, no file of rows and no version: `streamrl.services.learner` has them.
"""
