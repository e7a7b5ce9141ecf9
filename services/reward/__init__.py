"""The reward stage: the actor that has rows scored by child processes.
It imports `services.actors`, `services.queue`, `services.run`, `buffers` and `streamrl`.
No reward function: `streamrl.rewards` and the user's modules have them.
"""
