"""`tool_choice` of type `allowed_tools`: the others of a request's tools are as good as not sent."""

from pathlib import Path
from typing import Any

import pytest
from support.gateway.local_gateway import LocalGateway, local_gateway

from streamrl.gateway.openai.allowed_tools import with_allowed_tools
from streamrl.gateway.openai.bodies import ChatRequest
from streamrl.gateway.refusal import Refusal
from streamrl.gateway.sessions.session_body import HEADER

TOOLS = [{"type": "function", "function": {"name": name}} for name in ("add", "take", "halve")]
FLAT = [{"type": "function", "name": tool["function"]["name"]} for tool in TOOLS]


def allowed(*tools: Any, mode: Any = "auto") -> dict[str, Any]:
    """As a chat has it."""
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}


def left_of(choice: Any, tools: Any = TOOLS) -> tuple[list[str], Any]:
    """The names of the tools, and what is left of the choice."""
    messages = [{"role": "user", "content": "1"}]
    body = with_allowed_tools(ChatRequest(model="run", messages=messages, tools=tools, tool_choice=choice))
    return [tool.function.name for tool in body.tools or ()], body.tool_choice


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_those_that_are_named_are_left_in_their_order(mode: str) -> None:
    flat = {"type": "allowed_tools", "mode": mode, "tools": [FLAT[2], FLAT[0]]}
    for choice in (allowed(TOOLS[2], TOOLS[0], mode=mode), flat):
        assert left_of(choice) == (["add", "halve"], mode)


@pytest.mark.parametrize("choice", [None, "auto", "none", "required", TOOLS[1]])
def test_another_choice_leaves_all(choice: Any) -> None:
    assert left_of(choice) == (["add", "take", "halve"], choice)


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        (allowed(), "one or more `tools`"),
        (allowed(TOOLS[0], mode="any"), "`mode`, which is `auto` or `required`"),
        (allowed({"type": "function", "function": {"name": "melt"}}), "'melt', which is none of `tools`"),
        (allowed({"type": "mcp", "server_label": "x"}), "one of `tools`"),
        (allowed("add"), "one of `tools`"),
        ({"type": "allowed_tools", "allowed_tools": ["add"]}, "has `mode`"),
        ({"type": "allowed_tools"}, "has `mode`"),
    ],
)
def test_a_choice_that_says_nothing_is_refused(choice: Any, words: str) -> None:
    with pytest.raises(Refusal, match=words) as refused:
        left_of(choice)
    assert refused.value.param == "tool_choice"


def test_where_there_are_no_tools_none_can_be_named() -> None:
    with pytest.raises(Refusal, match=r"none of `tools` \(none\)"):
        left_of(allowed(TOOLS[0]), None)


async def prompt_of(gateway: LocalGateway, path: str, body: dict[str, Any]) -> Any:
    headers = {"authorization": f"Bearer {gateway.token()}", HEADER: "agent"}
    status, answer = await gateway.ask(path, {"model": "run", **body}, headers=headers)
    assert status == 200, answer
    return answer["streamrl"]["prompt_token_ids"]


async def test_the_model_is_told_of_those_alone_in_a_session_too(tmp_path: Path) -> None:
    async with local_gateway(tmp_path) as gateway:
        chat = {"messages": [{"role": "user", "content": "1"}]}
        two = await prompt_of(gateway, "/v1/chat/completions", {**chat, "tools": TOOLS[:2]})
        choice = allowed(*TOOLS[:2])
        chosen = await prompt_of(gateway, "/v1/chat/completions", {**chat, "tools": TOOLS, "tool_choice": choice})
        flat = {"type": "allowed_tools", "mode": "auto", "tools": FLAT[:2]}
        asked = {"input": "1", "tools": FLAT, "tool_choice": flat}
        assert two == chosen == await prompt_of(gateway, "/v1/responses", asked)
        assert two != await prompt_of(gateway, "/v1/chat/completions", {**chat, "tools": TOOLS})
