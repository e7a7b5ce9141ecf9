"""The queue actor, and rows on their way to those who read them on another node.
It imports `streamrl.services.actors`, `streamrl.services.run`, `streamrl.buffers` and `streamrl`.
No decision of the queue: `streamrl.buffers` makes them.
"""
