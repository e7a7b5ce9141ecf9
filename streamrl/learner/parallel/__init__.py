"""Ranks: process groups, the mesh, dispatch of calls, tensor and sequence parallelism.
It imports `streamrl.learner.batch`, torch and transformers.
No Ray: `services` starts the ranks.
"""
