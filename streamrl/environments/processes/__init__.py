"""Child processes in which environments live: what is said to them, and how they end.
It imports `streamrl.environments`, `streamrl.rewards` and `streamrl.system`.
No model: they know messages, and never ids.
"""
