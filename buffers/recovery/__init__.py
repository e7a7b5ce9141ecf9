"""From a run's files back to what it knew: to go on, to replay, to look, to verify.
It imports `streamrl.buffers`.
Nothing is decided anew: what the ledger says holds.
"""
