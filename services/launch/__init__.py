"""From a command to a running system: claim, watcher, owner, Ray."""
