"""Whether the weights of a model folder fit its config.json, by the headers of their files.
It imports `streamrl.config` and `streamrl.errors`. Only `weights_fit` needs torch.
No weights are read, and no model is loaded.
"""
