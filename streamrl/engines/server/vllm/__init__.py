"""vLLM: its command line, its routes, its answers. `inside` runs in the server's own environment.
It imports `streamrl.engines.server` and `streamrl.models`.
Nothing of vLLM is imported outside `inside`.
"""
