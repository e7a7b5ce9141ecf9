"""From TOML files and the command line to a `Config`, and back to TOML.
It imports `streamrl.config` and `streamrl.storage`.
No rule between keys: these live in `streamrl.config.rules`.
"""
