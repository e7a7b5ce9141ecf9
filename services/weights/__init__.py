"""The weight store actor, and the transfer of versions between nodes.
It imports `services.actors`, `services.queue`, `services.run`, `buffers` and `streamrl`.
No decision about versions: `streamrl.weights.store` makes them.
"""
