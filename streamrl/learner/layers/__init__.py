"""What a decoder layer is made of beside its attention, in few passes over memory.
It imports `streamrl.learner.kernels`, where a GPU computes, and torch.
No pack, no loss, no ranks, and no layer: `streamrl.learner.model` puts them in place.
"""
