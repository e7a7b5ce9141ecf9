"""Engines sample completions: `base` is the interface, `torch`, `server` and `scripted` are what stands behind it.
It imports `streamrl.scheduling`, `streamrl.models` and `streamrl.config`.
No text, no group and no reward: an engine knows requests of token ids, and versions.
"""
