"""A rollout replica: the actor, the thread of its engine, its log of completions, requests of clients.
It imports `streamrl.services.actors`, `streamrl.services.run`, `streamrl.services.weights`,
`streamrl.buffers` and `streamrl`.
No engine: `streamrl.engines` has them.
"""
