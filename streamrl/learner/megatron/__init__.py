"""The learner on megatron-core: a `LearnerBackend` over ranks that share layers, matrices and experts; `backend` is the
way in. It imports `streamrl.learner`, `streamrl.algorithms`, `streamrl.config`, megatron, torch and transformers.
No queue and no version, and no other folder knows Megatron: replaced, nothing outside of this one would change.
"""
