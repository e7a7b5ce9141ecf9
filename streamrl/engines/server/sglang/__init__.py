"""SGLang: its command line, its routes, its answers. `inside` runs in the server's own environment.
It imports `streamrl.engines.server`, `streamrl.models` and `streamrl.config`.
Nothing of SGLang is imported outside `inside`.
"""
