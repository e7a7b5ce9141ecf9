"""What every process of a run knows of it: its folder, its lock, its control socket, where things lie.
It imports `streamrl`.
No actor and no Ray.
"""
