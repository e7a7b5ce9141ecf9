"""OpenAI's routes: models, completions, chats."""

import asyncio
import secrets
from typing import Final

from fastapi import FastAPI, Request
from starlette.responses import Response

from streamrl.gateway.openai.allowed_tools import with_allowed_tools
from streamrl.gateway.openai.answers import ChatForm, CompletionForm, models
from streamrl.gateway.openai.bodies import ChatRequest, CompletionRequest
from streamrl.gateway.refusal import Refusal, json_bytes
from streamrl.gateway.sessions.session_body import session_of
from streamrl.services.gateway.answering import answer, head_of
from streamrl.services.gateway.gateway_services import ModelServices
from streamrl.services.gateway.refusals import REFUSALS, STREAMS

SEED_BITS: Final = 62


def add_openai(app: FastAPI, services: ModelServices) -> None:
    model = services.limits.model

    @app.get("/v1/models", responses=REFUSALS)
    async def list_models() -> Response:
        """The one model that is served, and the versions that replicas answer under."""
        return Response(json_bytes(models(services.model())), media_type="application/json")

    @app.get("/v1/models/{name}", responses=REFUSALS)
    async def retrieve_model(name: str) -> Response:
        """The same, by its name."""
        if name != model:
            what = f"there is no model {name!a} here; this run serves {model!a}"
            raise Refusal(404, "model_not_found", what, "model")
        return Response(json_bytes(services.model()), media_type="application/json")

    @app.post("/v1/completions", responses=STREAMS)
    async def complete(body: CompletionRequest, request: Request) -> Response:
        """Completions of a text or of token ids."""
        session = session_of(request.headers, body)
        memory = services.sessions.memory(session)
        asked = await asyncio.to_thread(services.reader.completion, body, secrets.randbits(SEED_BITS), memory)
        asked, capture = services.sessions.opened(session, asked, body)
        form = CompletionForm(services.tokenizer)
        head = head_of(form, secrets.token_hex(12), model)
        return await answer(request, services.answering, asked, form, head, capture)

    @app.post("/v1/chat/completions", responses=STREAMS)
    async def chat(body: ChatRequest, request: Request) -> Response:
        """The next turn of a conversation."""
        session, body = session_of(request.headers, body), with_allowed_tools(body)
        memory = services.sessions.memory(session)
        asked = await asyncio.to_thread(services.reader.chat, body, secrets.randbits(SEED_BITS), memory)
        number = secrets.token_hex(12)
        reader = asked.reader(number)
        asked, capture = services.sessions.opened(session, asked, body, reader)
        form = ChatForm(services.tokenizer, reader)
        return await answer(request, services.answering, asked, form, head_of(form, number, model), capture)
