"""The rules between keys: combinations that a type cannot refuse.
It imports `streamrl.config` and `streamrl.storage`.
Each rule is pure: a configuration in, problems out. No rule reads a file, except to find a model's facts.
"""
