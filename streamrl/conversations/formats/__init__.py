"""The forms in which models write tool calls and thoughts, each in a file, and the one that a template asks for.
It imports `streamrl.conversations.reasoning`, `streamrl.conversations.text`.
No ids of calls, no request and no tokens: a form takes text, and `streamrl.conversations.tool_calls` drives it.
"""
