"""OpenAI's Responses API: its items as chats, its answers, and what came before a response.
It imports `streamrl.conversations`, `streamrl.gateway` and `streamrl.types`.
No socket, no engine, and no rule of its own: what a chat may not ask, a response may not either.
"""
