"""Models and tokenizers as Hugging Face folders, and the GPU that they are put on.
It imports `streamrl.config`. Only `load`, `plain_weights`, `export`, `mixers` and `gpu` need torch.
No training and no sampling.
"""
