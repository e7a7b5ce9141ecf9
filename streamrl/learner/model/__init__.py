"""The trained model: packed attention, log-probs, adapters, sharding.
It imports `streamrl.learner`, `streamrl.models`, `streamrl.weights`, `streamrl.config`, torch and transformers.
No loss and no optimizer.
"""
