"""Checkpoints: one atomic commit of all that a resumed run needs, its format, its digests, its retention.
It imports `streamrl.system` and torch.
No optimizer and no model: it stores named tensors.
"""
