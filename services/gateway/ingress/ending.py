"""The end of a run's application in Ray Serve."""

from ray import serve


def end(name: str, *, wait: bool) -> None:
    """End an application, if it is there. wait: until its replicas are gone."""
    serve.delete(name, _blocking=wait)
