"""Attention over packs: registered with transformers, by the kernel that the device has, proven at load.
It imports `streamrl.learner.batch`, `streamrl.learner.parallel`, `streamrl.models`, torch and transformers.
No loss and no parameters: a model keeps its own, and calls what is here.
"""
