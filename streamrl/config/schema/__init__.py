"""The shape of a configuration: one frozen struct for each TOML table, each key with its meaning.
It imports `streamrl.config.known` and no other folder.
No rule between keys, and nothing that is computed from them.
"""
