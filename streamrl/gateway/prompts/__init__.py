"""Streams of submitted prompts as lines of JSON: what a client sends and what it is told.
It imports `streamrl.gateway`, `streamrl.models` and `streamrl.tasks`.
No queue: `streamrl.services.gateway.training` connects the two.
"""
