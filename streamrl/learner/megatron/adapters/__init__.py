"""Low-rank adapters on megatron-core's layers (`learner.lora`): where each is, what it computes, and their policy.
It imports `streamrl.learner`, `streamrl.models`, `streamrl.weights`, megatron, torch and transformers.
No optimizer, no loss and no schedule of a pipeline is known here.
"""
