"""Low-rank adapters (LoRA) as tensors: their names, their merge into the weights, and peft's folder of them.
It imports `streamrl.errors` and `streamrl.models`. Only `merge` and `peft_folder` need torch, the latter peft.
No training: `streamrl.learner.model` has the adapters of a policy.
"""
