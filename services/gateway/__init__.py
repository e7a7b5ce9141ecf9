"""The gateway: an HTTP server over the replicas, the queue and the versions of a run.
It imports `streamrl.services`, `streamrl.buffers` and `streamrl`.
No decision about a request that needs no socket: `streamrl.gateway` has these.
"""
