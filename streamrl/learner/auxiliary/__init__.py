"""The models beside the policy: critic, reference, implicit reward model; and what they give each token.
It imports `streamrl.learner`, `streamrl.algorithms` and `streamrl.config`.
The policy's own step does not live here.
"""
