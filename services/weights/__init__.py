"""The weight store actor, and the transfer of versions between nodes.
It imports `streamrl.services.actors`, `streamrl.services.queue`, `streamrl.services.run`,
`streamrl.buffers` and `streamrl`.
No decision about versions: `streamrl.weights.store` makes them.
"""
