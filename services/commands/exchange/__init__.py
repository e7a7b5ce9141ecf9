"""The verbs by which a run meets the world outside: published tasks, the model hub, configurations of other systems.
It imports `streamrl.services`, `streamrl.buffers` and `streamrl`.
No part of the running system, and nothing that a run waits for.
"""
