"""Episodes beside the stream: held-out prompts that are scored, demonstrations, and engines that are stepped for them.
It imports `streamrl.conversations`, `streamrl.engines`, `streamrl.evaluation`, `streamrl.models`, `streamrl.rewards`
and `streamrl.tasks`.
No row of the training comes from here.
"""
