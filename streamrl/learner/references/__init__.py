"""Policies that are not trained: one that stays as it is, and a moving average of the one that is trained.
It imports `streamrl.learner.model`, `streamrl.learner.batch`, `streamrl.learner.parallel`, torch and transformers.
No loss: what a policy is held to by them lives in `streamrl.learner.objectives` and `streamrl.learner.auxiliary`.
"""
