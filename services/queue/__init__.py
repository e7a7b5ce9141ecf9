"""The queue actor, and rows on their way to those who read them on another node.
It imports `services.actors`, `services.run`, `buffers` and `streamrl`.
No decision of the queue: `buffers` makes them.
"""
