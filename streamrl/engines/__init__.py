"""Engines sample completions. `base` is the seam; `torch` and `scripted` are what stands behind it."""
