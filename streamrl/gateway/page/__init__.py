"""What the page of a run shows: history, samples, the state of its parts, Prometheus figures.
It imports `streamrl.gateway`, `streamrl.observability`, `streamrl.algorithms` and `streamrl.config`.
No socket: `streamrl.services.gateway.page` serves it, and the files in `static`.
"""
