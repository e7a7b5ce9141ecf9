"""From a command to a running system: claim of the folder, watcher, owner, Ray.
It imports `streamrl.services.actors`, `streamrl.services.controller`, `streamrl.services.storage`,
`streamrl.services.run` and `streamrl`.
Nothing of what a run does once it runs.
"""
