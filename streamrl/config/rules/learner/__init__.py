"""The rules of `[learner]`: algorithm, critic, reference, ranks, adapters.
It imports `streamrl.config`.
No rule that concerns another table first.
"""
