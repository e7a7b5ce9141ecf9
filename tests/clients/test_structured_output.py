"""Published clients get what they ask for by a schema, or a tool called, from a model that was drawn by chance."""

import asyncio
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import pydantic
import pytest
from support.gateway.local_gateway import LocalGateway
from support.gateway.torch_gateway import LONG, torch_gateway

pytestmark = pytest.mark.skipif(find_spec("agents") is None, reason="make test-clients")


class Verdict(pydantic.BaseModel):
    """Its values have an end, which a text that is drawn by chance may not have."""

    model_config = pydantic.ConfigDict(extra="forbid")
    answer: Literal["yes", "no"]
    sure: bool


SCHEMA = Verdict.model_json_schema()
QUESTION = [{"role": "user", "content": "1+1=2?"}]
ASKED: dict[str, Any] = {"model": "run", "messages": QUESTION, "max_tokens": 2000}


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[LocalGateway]:
    async with torch_gateway(tmp_path, **LONG) as opened:
        yield opened


def openai_of(gateway: LocalGateway) -> Any:
    import openai

    return openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.token(), max_retries=0)


async def test_openais_client_parses_chats(gateway: LocalGateway) -> None:
    import openai

    async with openai_of(gateway) as client:
        answer = await client.chat.completions.parse(response_format=Verdict, seed=1, **ASKED)
        assert isinstance(answer.choices[0].message.parsed, Verdict)
        async with client.chat.completions.stream(response_format=Verdict, seed=1, **ASKED) as stream:
            streamed = await stream.get_final_completion()
        assert streamed.choices[0].message.parsed == answer.choices[0].message.parsed
        nothing = {"type": "json_schema", "json_schema": {"name": "sum", "schema": {"type": "nothing"}}}
        with pytest.raises(openai.BadRequestError, match="response_format is no grammar"):
            await client.chat.completions.create(response_format=nothing, **ASKED)


async def test_openais_client_parses_responses(gateway: LocalGateway) -> None:
    async with openai_of(gateway) as client:
        answer = await client.responses.parse(model="run", input="1+1=2?", text_format=Verdict, max_output_tokens=2000)
        assert isinstance(answer.output_parsed, Verdict)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "judge"}}], ids=str)
async def test_openais_client_has_a_tool_called(gateway: LocalGateway, choice: Any) -> None:
    import openai

    tools = [openai.pydantic_function_tool(Verdict, name="judge")]
    async with openai_of(gateway) as client:
        answer = await client.chat.completions.parse(
            tools=tools, tool_choice=choice, parallel_tool_calls=False, **ASKED
        )
    assert answer.choices[0].finish_reason == "tool_calls"
    (call,) = answer.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Verdict)


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "judge"}], ids=str)
async def test_anthropics_client_has_a_tool_called(gateway: LocalGateway, choice: dict[str, Any]) -> None:
    import anthropic

    tools = [{"name": "judge", "input_schema": SCHEMA}]
    choice = {**choice, "disable_parallel_tool_use": True}
    async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key=gateway.token(), max_retries=0) as client:
        answer = await client.messages.create(tools=tools, tool_choice=choice, **ASKED)
    assert answer.stop_reason == "tool_use"
    (call,) = [block for block in answer.content if block.type == "tool_use"]
    assert Verdict.model_validate(call.input)


@pytest.mark.parametrize("mode", ["TOOLS", "JSON_SCHEMA"])
async def test_instructor_extracts(gateway: LocalGateway, mode: str) -> None:
    import instructor

    async with openai_of(gateway) as client:
        extracting = instructor.from_openai(client, mode=instructor.Mode[mode])
        found = await extracting.chat.completions.create(response_model=Verdict, max_retries=0, **ASKED)
    assert isinstance(found, Verdict)


async def test_dspy_predicts(gateway: LocalGateway) -> None:
    import dspy

    class Judge(dspy.Signature):
        question: str = dspy.InputField()
        answer: Literal["yes", "no"] = dspy.OutputField()

    # What an unknown model can do it does not know, so that its users say what a server is to do.
    schema = {"type": "object", "properties": {"answer": {"enum": ["yes", "no"]}}, "required": ["answer"]}
    model = dspy.LM(
        "openai/run",
        api_base=f"{gateway.url}/v1",
        api_key=gateway.token(),
        max_tokens=2000,
        cache=False,
        extra_body={"guided_json": {**schema, "additionalProperties": False}},
    )
    with dspy.context(lm=model, adapter=dspy.JSONAdapter()):
        predicted = await dspy.Predict(Judge).acall(question="1+1=2?")
    assert predicted.answer in ("yes", "no")


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
async def test_langchain_has_structured_output(gateway: LocalGateway, method: str) -> None:
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(
        base_url=f"{gateway.url}/v1", model="run", api_key=gateway.token(), max_tokens=2000, max_retries=0
    )
    assert isinstance(await model.with_structured_output(Verdict, method=method).ainvoke("1+1=2?"), Verdict)


async def test_pydantic_ai_has_an_output_type(gateway: LocalGateway) -> None:
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=f"{gateway.url}/v1", api_key=gateway.token())
    for wanted in (Verdict, NativeOutput(Verdict)):
        agent = Agent(
            OpenAIChatModel("run", provider=provider), output_type=wanted, model_settings={"max_tokens": 2000}
        )
        assert isinstance((await agent.run("1+1=2?")).output, Verdict)


async def test_smolagents_calls_its_tools(gateway: LocalGateway) -> None:
    from smolagents import OpenAIModel, ToolCallingAgent, tool

    asked = []

    @tool
    def judge(answer: str, sure: bool) -> str:
        """Says whether.

        Args:
            answer: what.
            sure: whether.
        """
        asked.append((answer, sure))
        return "no"

    model = OpenAIModel("run", api_base=f"{gateway.url}/v1", api_key=gateway.token(), max_tokens=2000, seed=1)
    agent = ToolCallingAgent(tools=[judge], model=model, max_steps=3, verbosity_level=0)
    await asyncio.to_thread(agent.run, "1+1=2?")
    calls = [call.name for step in agent.memory.steps for call in getattr(step, "tool_calls", None) or ()]
    assert calls.count("judge") == len(asked)
    assert set(calls) <= {"judge", "final_answer"}
    assert calls
