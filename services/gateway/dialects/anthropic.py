"""Anthropic's routes: messages, and how many tokens one would have."""

import asyncio
import secrets

from fastapi import FastAPI, Request
from starlette.responses import Response

from streamrl.gateway.anthropic.answers import MessageForm
from streamrl.gateway.anthropic.messages import CountRequest, MessagesRequest
from streamrl.gateway.refusal import json_bytes
from streamrl.gateway.sessions.session_body import session_of
from streamrl.services.gateway.answering import answer, head_of
from streamrl.services.gateway.dialects.openai import SEED_BITS
from streamrl.services.gateway.gateway_services import ModelServices
from streamrl.services.gateway.refusals import REFUSALS, STREAMS


def add_anthropic(app: FastAPI, services: ModelServices) -> None:
    @app.post("/v1/messages", responses=STREAMS)
    async def message(body: MessagesRequest, request: Request) -> Response:
        """The next turn of a conversation, as Anthropic's clients ask for it."""
        session, chat = session_of(request.headers, body), body.chat()
        memory = services.sessions.memory(session)
        asked = await asyncio.to_thread(services.reader.chat, chat, secrets.randbits(SEED_BITS), memory)
        number = secrets.token_hex(12)
        reader = asked.reader(number)
        asked, capture = services.sessions.opened(session, asked, chat, reader)
        form = MessageForm(reader)
        head = head_of(form, number, services.limits.model)
        return await answer(request, services.answering, asked, form, head, capture)

    @app.post("/v1/messages/count_tokens", responses=REFUSALS)
    async def count(body: CountRequest) -> Response:
        """How many tokens a conversation has."""
        services.reader.check_model(body.model)
        prompt = await asyncio.to_thread(services.reader.prompt_of, body.chat())
        ids = services.reader.encoded(prompt.text, "messages", add_special_tokens=False)
        return Response(json_bytes({"input_tokens": len(ids)}), media_type="application/json")
