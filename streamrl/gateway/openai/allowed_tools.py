"""A `tool_choice` that leaves some of a request's tools (`allowed_tools`). Pure.

Guarantees: the model is told of those that are left alone, and no call of another is read.
"""

from collections.abc import Mapping

from streamrl.gateway.openai.bodies import ChatRequest
from streamrl.gateway.openai.grammars import named_tool
from streamrl.gateway.refusal import invalid


def with_allowed_tools(body: ChatRequest) -> ChatRequest:
    """The same chat with the tools that its `tool_choice` leaves, and the mode of that in its place. Raises Refusal."""
    choice = body.tool_choice
    if not isinstance(choice, Mapping) or choice.get("type") != "allowed_tools":
        return body
    given = choice.get("allowed_tools", choice)  # a chat has them in an object of their own, a response has not
    mode, named = (given.get("mode"), given.get("tools")) if isinstance(given, Mapping) else (None, None)
    if mode not in ("auto", "required") or not isinstance(named, list) or not named:
        what = "tool_choice of type 'allowed_tools' has `mode`, which is `auto` or `required`, and one or more `tools`"
        raise invalid("invalid_value", what, "tool_choice")
    names = [tool.name for tool in body.tools or ()]
    allowed = {named_tool(one, names) for one in named}
    left = [tool for tool in body.tools or () if tool.name in allowed]
    return body.model_copy(update={"tools": left, "tool_choice": mode})
