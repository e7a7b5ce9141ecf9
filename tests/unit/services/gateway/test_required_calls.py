"""A call that must be made, from a request over the torch engine to the call in the answer, in several forms."""

import json
from pathlib import Path

import pytest
from support.gateway.torch_gateway import LONG, torch_gateway

from streamrl.config.schema.run import GatewayConfig

LEVEL = {"type": "integer", "minimum": 0, "maximum": 9}
SCHEMA = {
    "type": "object",
    "properties": {"level": LEVEL, "unit": {"type": "string", "enum": ["m", "km"]}},
    "required": ["level", "unit"],
}
TOOL = {"type": "function", "function": {"name": "judge", "parameters": SCHEMA}}


@pytest.mark.parametrize("form", ["glm45", "mistral", "deepseek_v31", "pythonic", "llama3_json"])
async def test_a_required_call_is_made_in_the_form_in_which_calls_are_read(form: str, tmp_path: Path) -> None:
    settings = GatewayConfig(enabled=True, tool_call_parser=form)
    async with torch_gateway(tmp_path, **LONG, gateway=settings) as gateway:
        asked = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 500}
        status, answer = await gateway.chat("1", **asked)
    assert status == 200, answer
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "tool_calls", choice
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "judge"
    arguments = json.loads(call["function"]["arguments"])
    assert (arguments.keys(), arguments["unit"] in ("m", "km")) == (SCHEMA["properties"].keys(), True)
    assert 0 <= arguments["level"] <= 9
