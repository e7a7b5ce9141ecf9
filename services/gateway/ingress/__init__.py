"""Further gateways of a run, on any node: each answers what needs nothing of the run but its replicas, and passes the
rest on to the run's own. It imports `streamrl.services.gateway`, `streamrl.services.actors` and `streamrl`.
`application` and `ending` alone import Ray Serve.
"""
