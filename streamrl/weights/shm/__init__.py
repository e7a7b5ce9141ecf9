"""Versions in shared memory on one node: written once, mapped by every reader, checked together.
It imports `streamrl.weights`, numpy and torch.
No other node: `streamrl.weights.transport` reaches those.
"""
