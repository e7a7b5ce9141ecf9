"""The owner's control socket: where it listens, what it answers, and who asks it.
It imports `streamrl.services.run` and `streamrl`.
No actor and no Ray.
"""
