"""Triton kernels of the learner: passes over logits, norms, rotary embedding, gate.

It imports triton, and is imported where a GPU computes and nowhere else.
No model, no pack, no configuration: functions of tensors, each with a form in plain torch beside its caller.
"""
