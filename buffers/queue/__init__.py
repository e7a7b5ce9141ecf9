"""The replay queue: the index, durable and awaitable.
It imports `streamrl.buffers`, `streamrl.scheduling`, `streamrl.system`, `streamrl.tasks` and `streamrl.config`.
No Ray: the actor around it is `streamrl.services.queue`.
"""
