"""What clients add to the training and read of it: prompts, sessions, trajectories, samples.
It imports `streamrl.services.actors`, `streamrl.services.gateway`, `streamrl.services.inspect`,
`streamrl.services.queue`, `streamrl.buffers` and `streamrl`.
No route is declared here: `streamrl.services.gateway.app` does that.
"""
