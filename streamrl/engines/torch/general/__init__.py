"""The torch engine's way for any other decoder of transformers: the model's own modules.
It imports `streamrl.engines.torch`, `streamrl.engines.torch.eager`, `streamrl.models` and transformers.
No request and no version: the engine has them.
"""
