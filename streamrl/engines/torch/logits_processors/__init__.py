"""What requests change of the distribution that their tokens are drawn from: grammars, bias, penalties, a least length.
It imports `streamrl.engines.torch` and torch.
No kernel of a GPU, and nothing that draws: it is given logits, and gives others.
"""
