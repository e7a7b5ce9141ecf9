"""Reading a run from outside, live or not: its rows, its checksums, and what bounds its speed.
It imports `streamrl.services.learner`, `streamrl.services.run`, `streamrl.buffers` and `streamrl`.
Nothing is written to a run here, and no actor is called.
"""
