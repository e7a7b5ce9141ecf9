"""Training without rollouts: warm-up on demonstrations, preference pairs, DPO, reward models.
It imports `streamrl.learner`, `streamrl.algorithms`, `streamrl.models`, `streamrl.tasks` and `streamrl.config`.
The queue and its rows do not come in.
"""
