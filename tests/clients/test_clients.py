"""Published clients, as they are, at a real gateway: each does its plain job with the base URL and the key alone."""

from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.gateway.agent_sessions import CALLS, gateway_of
from support.gateway.local_gateway import LocalGateway

pytestmark = pytest.mark.skipif(find_spec("agents") is None, reason="make test-clients")

MOST = 8
TRIES = 400
"""A model of random weights calls a tool in some of its answers, and says something in others."""
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[LocalGateway]:
    async with gateway_of(tmp_path, **CALLS, most=MOST) as opened:
        yield opened


async def rewarded(gateway: LocalGateway, session: str) -> dict[str, Any]:
    status, told = await gateway.ask(f"/api/sessions/{session}/reward", {"reward": 1.0})
    assert status == 200, told
    return told


async def session_key(gateway: LocalGateway, session: str) -> str:
    _, begun = await gateway.ask("/api/sessions", {"session_id": session})
    return begun["api_key"]


# ---- Anthropic's


def anthropic_of(gateway: LocalGateway, **more: Any) -> Any:
    import anthropic

    return anthropic.AsyncAnthropic(base_url=gateway.url, **{"api_key": gateway.token(), "max_retries": 0, **more})


async def test_anthropics_client_answers_streams_counts_and_is_refused(gateway: LocalGateway) -> None:
    import anthropic

    asked = {"model": "run", "messages": [{"role": "user", "content": "1"}]}
    async with anthropic_of(gateway) as client:
        answer = await client.messages.create(max_tokens=MOST, **asked)
        assert answer.usage.output_tokens == len(answer.streamrl["token_ids"])
        counted = await client.messages.count_tokens(**asked)
        assert counted.input_tokens == answer.usage.input_tokens
        async with client.messages.stream(max_tokens=MOST, **asked) as stream:
            texts = [text async for text in stream.text_stream]
            whole = await stream.get_final_message()
        assert "".join(texts) == "".join(block.text for block in whole.content)
        with pytest.raises(anthropic.NotFoundError, match="there is no model"):
            await client.messages.create(max_tokens=MOST, **{**asked, "model": "claude"})
        with pytest.raises(anthropic.BadRequestError, match="context"):
            await client.messages.create(max_tokens=1000, **asked)
    async with anthropic_of(gateway, api_key="wrong") as client:
        with pytest.raises(anthropic.AuthenticationError):
            await client.messages.create(max_tokens=MOST, **asked)


async def test_an_agent_of_anthropics_client_is_trained(gateway: LocalGateway) -> None:
    tools = [{"name": "add", "description": "Adds.", "input_schema": PARAMETERS}]
    for number in range(TRIES):
        session = f"agent-{number}"
        messages: list[Any] = [{"role": "user", "content": "1"}]
        async with anthropic_of(gateway, api_key=await session_key(gateway, session)) as client:
            turn = -1
            while turn < 1:  # its context has room for two
                turn += 1
                async with client.messages.stream(
                    model="run", max_tokens=MOST, messages=messages, tools=tools
                ) as stream:
                    answer = await stream.get_final_message()
                calls = [block for block in answer.content if block.type == "tool_use"]
                if answer.stop_reason != "tool_use":
                    break
                results = [{"type": "tool_result", "tool_use_id": call.id, "content": "2"} for call in calls]
                messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": results}]
        if turn:
            told = await rewarded(gateway, session)
            assert (told["branches"], told["turns"]) == (1, turn + 1)
            return
    raise AssertionError("no answer called a tool")


# ---- OpenAI's agents


async def test_an_agent_of_openais_sdk_is_trained_by_its_default_api(gateway: LocalGateway) -> None:
    import agents
    import openai

    agents.set_tracing_disabled(True)

    @agents.function_tool
    def add(a: int = 0) -> str:
        """Adds."""
        return "2"

    for number in range(TRIES):
        session = f"agent-{number}"
        async with openai.AsyncOpenAI(
            base_url=f"{gateway.url}/v1", api_key=await session_key(gateway, session), max_retries=0
        ) as client:
            model = agents.OpenAIResponsesModel(model="run", openai_client=client)
            settings = agents.ModelSettings(max_tokens=MOST)
            agent = agents.Agent(name="adder", tools=[add], model=model, model_settings=settings)
            try:
                result = await agents.Runner.run(agent, "1", max_turns=2)
            except (agents.MaxTurnsExceeded, agents.ModelBehaviorError):
                continue
        turns = len(result.raw_responses)
        if turns > 1:
            told = await rewarded(gateway, session)
            assert told["turns"] == turns
            return
    raise AssertionError("no answer called a tool")


# ---- frameworks


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
async def test_litellm_answers_and_streams(gateway: LocalGateway, dialect: str) -> None:
    import litellm

    base = f"{gateway.url}/v1" if dialect == "openai" else gateway.url
    asked = {
        "model": f"{dialect}/run",
        "api_base": base,
        "api_key": gateway.token(),
        "messages": [{"role": "user", "content": "1"}],
        "max_tokens": MOST,
        "tools": [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": PARAMETERS}}],
    }
    answer = await litellm.acompletion(**asked)
    assert answer.usage.completion_tokens > 0
    chunks = [chunk async for chunk in await litellm.acompletion(**asked, stream=True)]
    assert chunks[-1].choices[0].finish_reason in ("stop", "length", "tool_calls")


async def test_litellm_has_responses(gateway: LocalGateway) -> None:
    import litellm

    base = f"{gateway.url}/v1"
    answer = await litellm.aresponses(
        model="openai/run", input="1", api_base=base, api_key=gateway.token(), max_output_tokens=MOST
    )
    assert answer.usage.output_tokens > 0


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
async def test_langchain_answers_streams_and_calls_tools(gateway: LocalGateway, dialect: str) -> None:
    from langchain_anthropic import ChatAnthropic
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    @tool
    def add(a: int) -> str:
        """Adds."""
        return "2"

    asked = {"model": "run", "api_key": gateway.token(), "max_tokens": MOST, "max_retries": 0}
    model: Any = (
        ChatOpenAI(base_url=f"{gateway.url}/v1", **asked)
        if dialect == "openai"
        else ChatAnthropic(base_url=gateway.url, **asked)
    )
    assert (await model.ainvoke("1")).usage_metadata["output_tokens"] > 0
    assert [chunk async for chunk in model.astream("1")]
    for _ in range(TRIES):
        message = await model.bind_tools([add]).ainvoke("1")
        if message.tool_calls:
            call = message.tool_calls[0]
            assert call["name"] == "add"
            assert isinstance(call["args"], dict)
            return
    raise AssertionError("no answer called a tool")


@pytest.mark.parametrize("dialect", ["chat", "responses", "anthropic"])
async def test_pydantic_ai_runs_an_agent_with_a_tool(gateway: LocalGateway, dialect: str) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.exceptions import AgentRunError, UserError
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    called = []

    def add(a: int = 0) -> str:
        """Adds."""
        called.append(a)
        return "2"

    key = gateway.token()
    openai = OpenAIProvider(base_url=f"{gateway.url}/v1", api_key=key)
    model: Any = {
        "chat": lambda: OpenAIChatModel("run", provider=openai),
        "responses": lambda: OpenAIResponsesModel("run", provider=openai),
        "anthropic": lambda: AnthropicModel("run", provider=AnthropicProvider(api_key=key, base_url=gateway.url)),
    }[dialect]()
    agent = Agent(model, tools=[add], model_settings={"max_tokens": MOST}, retries=0)
    for _ in range(TRIES):
        called.clear()
        try:
            result = await agent.run("1")
        except (AgentRunError, UserError):
            continue  # an empty answer, one that was cut, or too many calls
        if called:
            assert isinstance(result.output, str)
            return
    raise AssertionError("no agent called its tool and came to an end")
