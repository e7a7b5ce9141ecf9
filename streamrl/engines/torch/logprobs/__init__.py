"""What the torch engine tells beside the tokens: the likeliest ones in their places, and log-probs of prompts.
It imports `streamrl.engines.torch` and torch.
No cache and no weights: it is given what a pass makes logits of.
"""
