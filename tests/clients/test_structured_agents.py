"""Published agents that want their answers by a schema are trained as they are, by the key of a session alone: on what
the model chose, and never on what the schema chose for it."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pydantic
import pytest
from support.gateway.agent_sessions import CLOSE, grammar_gateway, left_by_grammar, trained
from support.gateway.local_gateway import LocalGateway

from streamrl.conversations.branches import Branch
from streamrl.gateway.sessions.capture import LEAST_LEFT
from streamrl.models.tokenizer import load_tokenizer

pytestmark = pytest.mark.skipif(find_spec("agents") is None, reason="make test-clients")

QUESTION = "1+1=2?"
MOST = 400
SEED = 3
SESSION = "agent"


class Note(pydantic.BaseModel):
    """Its text has an end, which one that is drawn by chance may not have, and room for the model to choose."""

    model_config = pydantic.ConfigDict(extra="forbid")
    text: Annotated[str, pydantic.Field(min_length=40, max_length=40)]


Agent = Callable[[str, str], Awaitable[None]]
"""(URL of the gateway, key of a session): does its job, with one call or more."""


def openai_of(url: str, key: str) -> Any:
    import openai

    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


async def by_chat(url: str, key: str) -> None:
    asked = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": MOST, "seed": SEED}
    async with openai_of(url, key) as client:
        answer = await client.chat.completions.parse(model="run", response_format=Note, **asked)
    assert isinstance(answer.choices[0].message.parsed, Note)


async def by_responses(url: str, key: str) -> None:
    async with openai_of(url, key) as client:
        asked = {"input": QUESTION, "max_output_tokens": MOST}
        answer = await client.responses.parse(model="run", text_format=Note, **asked)
    assert isinstance(answer.output_parsed, Note)


async def by_anthropics_tool(url: str, key: str) -> None:
    import anthropic

    tools = [{"name": "take", "input_schema": Note.model_json_schema()}]
    asked = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": MOST}
    choice = {"type": "tool", "name": "take", "disable_parallel_tool_use": True}
    async with anthropic.AsyncAnthropic(base_url=url, api_key=key, max_retries=0) as client:
        answer = await client.messages.create(model="run", tools=tools, tool_choice=choice, **asked)
    (call,) = [block for block in answer.content if block.type == "tool_use"]
    assert Note.model_validate(call.input)


async def by_instructor(url: str, key: str) -> None:
    import instructor

    async with openai_of(url, key) as client:
        extracting = instructor.from_openai(client, mode=instructor.Mode.TOOLS)
        asked = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": MOST, "seed": SEED}
        found = await extracting.chat.completions.create(model="run", response_model=Note, max_retries=0, **asked)
    assert isinstance(found, Note)


async def by_langchain(url: str, key: str) -> None:
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(base_url=f"{url}/v1", model="run", api_key=key, max_tokens=MOST, seed=SEED, max_retries=0)
    assert isinstance(await model.with_structured_output(Note, method="json_schema").ainvoke(QUESTION), Note)


async def by_pydantic_ai(url: str, key: str) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel("run", provider=OpenAIProvider(base_url=f"{url}/v1", api_key=key))
    agent = Agent(model, output_type=Note, model_settings={"max_tokens": MOST, "seed": SEED})
    assert isinstance((await agent.run(QUESTION)).output, Note)


async def by_smolagents(url: str, key: str) -> None:
    from smolagents import OpenAIModel, ToolCallingAgent, tool

    @tool
    def look(where: str) -> str:
        """Says what is there.

        Args:
            where: it is.
        """
        return "nothing"

    model = OpenAIModel("run", api_base=f"{url}/v1", api_key=key, max_tokens=MOST, seed=SEED)
    agent = ToolCallingAgent(tools=[look], model=model, max_steps=2, verbosity_level=0)
    await asyncio.to_thread(agent.run, QUESTION)


AGENTS: dict[str, Agent] = {
    "chat": by_chat,
    "responses": by_responses,
    "anthropic": by_anthropics_tool,
    "instructor": by_instructor,
    "langchain": by_langchain,
    "pydantic-ai": by_pydantic_ai,
    "smolagents": by_smolagents,
}


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[LocalGateway]:
    async with grammar_gateway(tmp_path) as opened:
        yield opened


def rows_of(gateway: LocalGateway) -> list[Branch]:
    sessions = gateway.actor._sessions
    rows = sessions.take(SESSION).branches()
    sessions.reopen(SESSION)
    return rows


@pytest.mark.parametrize("name", AGENTS)
async def test_an_agent_is_trained_on_what_the_model_chose(name: str, gateway: LocalGateway, tmp_path: Path) -> None:
    _, begun = await gateway.ask("/api/sessions", {"session_id": SESSION})
    await AGENTS[name](gateway.url, begun["api_key"])
    rows = rows_of(gateway)
    assert rows
    for row in rows:
        before: list[int] = []
        for turn in row.turns:
            before += turn.prompt_ids
            left = left_by_grammar(tmp_path / "model", before, turn.token_ids, turn.logprobs)
            assert (left > math.log(LEAST_LEFT) - CLOSE).all(), (turn, left)
            before += turn.token_ids
        ids = np.array([one for one, own in trained(row) if own], np.int32)
        text = load_tokenizer(tmp_path / "model").decode(ids)
        assert '"text"' not in text  # a name that the schema gave
    status, told = await gateway.ask(f"/api/sessions/{SESSION}/reward", {"reward": 1.0})
    assert (status, told["branches"]) == (200, len(rows)), told
