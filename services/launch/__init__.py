"""From a command to a running system: claim of the folder, watcher, owner, Ray.
It imports `services.actors`, `services.controller`, `services.run` and `streamrl`.
Nothing of what a run does once it runs.
"""
