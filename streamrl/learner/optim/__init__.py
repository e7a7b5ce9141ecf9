"""The optimizer: AdamW, its 8-bit form, the learning-rate schedule, and the moments in a checkpoint.
It imports `streamrl.config` and torch.
No model and no batch.
"""
