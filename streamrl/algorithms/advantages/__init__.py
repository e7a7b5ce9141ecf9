"""Advantages: from the rewards of a batch to one number for each row or token.
It imports `streamrl.algorithms`, `streamrl.config`, numpy and torch.
No model and no rank: what needs a critic's forward pass lives in `streamrl.learner.auxiliary`.
"""
