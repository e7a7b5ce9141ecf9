"""Anthropic's Messages API: its bodies as chats, and answers in its words, whole and in events.
It imports `streamrl.conversations`, `streamrl.gateway` and `streamrl.types`.
No socket, no engine, and no rule of its own: what a chat may not ask, a message may not either.
"""
