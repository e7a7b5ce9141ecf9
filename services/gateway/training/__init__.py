"""What clients add to the training and read of it: prompts, sessions, trajectories, samples.
It imports `services.actors`, `services.gateway`, `services.queue`, `buffers` and `streamrl`.
No route is declared here: `services.gateway.app` does that.
"""
