"""The reward stage: the actor that has rows scored by child processes.
It imports `streamrl.services.actors`, `streamrl.services.queue`, `streamrl.services.run`,
`streamrl.buffers` and `streamrl`.
No reward function: `streamrl.rewards` and the user's modules have them.
"""
