"""Model chunks of one rank on megatron-core: layers, what is before the first, and the head behind the last.
It imports `streamrl.learner`, `streamrl.config`, megatron, torch and transformers.
No plan of weights, no optimizer and no schedule of a pipeline is known here.
"""
