"""A rollout replica: the actor, the thread of its engine, its log of completions, requests of clients.
It imports `services.actors`, `services.run`, `services.weights`, `buffers` and `streamrl`.
No engine: `streamrl.engines` has them.
"""
