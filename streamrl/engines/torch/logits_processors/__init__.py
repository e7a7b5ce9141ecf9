"""What requests change of the distribution that their tokens are drawn from: grammars, bias, penalties, a least length.

It may import the engine's books and configuration. No kernel of a GPU comes in, and nothing that draws.
"""
