"""A server's process: its environment, its private folder, its start and its end.
It imports `streamrl.system`, `streamrl.config` and `streamrl.weights`.
It does not know which server program runs.
"""
