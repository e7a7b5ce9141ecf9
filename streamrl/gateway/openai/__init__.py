"""OpenAI's API: request bodies, chat templates, tool calls, and answers, whole and in chunks.
It imports `streamrl.conversations`, `streamrl.gateway` and `streamrl.models`.
No socket and no engine.
"""
