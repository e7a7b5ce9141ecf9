"""vLLM's own routes: token ids in and out, and texts to ids and back.
It imports `streamrl.conversations`, `streamrl.gateway`, `streamrl.models` and `streamrl.types`.
No socket and no engine.
"""
