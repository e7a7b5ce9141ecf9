"""OpenAI's Responses route."""

import asyncio
import secrets
from typing import Final

from fastapi import FastAPI, Request
from starlette.responses import Response

from streamrl.conversations.tool_calls import ParsedMessage
from streamrl.gateway.openai.answers import Json
from streamrl.gateway.openai.logprobs import TokenTexts
from streamrl.gateway.responses.answers import ResponseForm, check_logprobs, said_as_message
from streamrl.gateway.responses.items import ResponsesRequest
from streamrl.gateway.responses.past import PastResponses
from streamrl.gateway.sessions.session_body import session_of
from streamrl.services.gateway.answering import answer, head_of
from streamrl.services.gateway.dialects.openai import SEED_BITS
from streamrl.services.gateway.gateway_services import GatewayServices
from streamrl.services.gateway.refusals import STREAMS

PAST_BYTES: Final = 2**26
"""Of responses that may be named as the one before."""


def add_responses(app: FastAPI, services: GatewayServices) -> None:
    past, texts = PastResponses(PAST_BYTES), TokenTexts(services.tokenizer)

    @app.post("/v1/responses", responses=STREAMS)
    async def respond(body: ResponsesRequest, request: Request) -> Response:
        """The next turn of a conversation, as items."""
        session, body = session_of(request.headers, body), body.resolved(past.item)
        messages = body.messages(past.messages(body.previous_response_id))
        chat, memory = body.chat(messages), services.sessions.memory(session)
        asked = await asyncio.to_thread(services.reader.chat, chat, secrets.randbits(SEED_BITS), memory)
        check_logprobs(body, asked)
        number = secrets.token_hex(12)
        reader = asked.reader(number)
        asked, capture = services.sessions.opened(session, asked, chat, reader)

        def keep(name: str, said: ParsedMessage, items: list[Json]) -> None:
            if body.store is not False:
                past.keep(name, [*messages, said_as_message(said)], items)

        form = ResponseForm(body, reader, keep, texts.text)
        head = head_of(form, number, services.limits.model)
        return await answer(request, services.answering, asked, form, head, capture)
