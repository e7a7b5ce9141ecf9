"""The learner on megatron-core: a `LearnerBackend` over tensor, pipeline, expert and data parallel ranks; `backend` is the
way in. It imports `streamrl.learner`, `streamrl.algorithms`, `streamrl.config`, megatron, torch and transformers.
No queue and no version, and no other folder knows Megatron: replaced, nothing outside of this one would change.
"""
