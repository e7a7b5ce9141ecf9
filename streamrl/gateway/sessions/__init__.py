"""Sessions and trajectories: the calls of an agent as branches of exact ids.
It imports `streamrl.conversations`, `streamrl.gateway` and `streamrl.models`.
No storage: `streamrl.services.gateway.training` keeps and writes them.
"""
