"""Conversations with a model as exact ids: turns, branches, the text of tokens, tool calls in it.
It imports `streamrl.models`.
No HTTP, no environment and no engine: who talks to whom is `streamrl.gateway` and `streamrl.environments`.
"""
