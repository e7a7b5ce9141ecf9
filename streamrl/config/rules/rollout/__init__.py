"""The rules of `[rollout]`: autoscaling, placement, server engines.
It imports `streamrl.config`.
No rule that concerns another table first.
"""
