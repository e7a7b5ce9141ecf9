"""Versions on their way between nodes: what is offered, what is pulled, and the copies that are kept.
It imports `streamrl.weights`, `streamrl.storage` and `streamrl.system`.
No Ray: `streamrl.services.weights` calls it.
"""
