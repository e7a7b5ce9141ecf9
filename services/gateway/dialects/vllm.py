"""vLLM's routes: token ids in and out, and texts to ids and back."""

import asyncio
import secrets

from fastapi import FastAPI, Request
from starlette.responses import Response

from streamrl.gateway.refusal import json_bytes
from streamrl.gateway.sessions.session_body import session_of
from streamrl.gateway.vllm.generate import GenerateForm, GenerateRequest
from streamrl.gateway.vllm.tokenize import DetokenizeRequest, TokenizeRequest, detokenized, tokenized
from streamrl.services.gateway.answering import answer, head_of
from streamrl.services.gateway.dialects.openai import SEED_BITS
from streamrl.services.gateway.gateway_services import ModelServices
from streamrl.services.gateway.refusals import REFUSALS, STREAMS


def add_vllm(app: FastAPI, services: ModelServices) -> None:
    limits, tokenizer = services.limits, services.tokenizer

    @app.post("/inference/v1/generate", responses=STREAMS)
    async def generate(body: GenerateRequest, request: Request) -> Response:
        """A completion of token ids, as token ids."""
        session = session_of(request.headers, body)
        completion = body.completion(limits)
        asked = await asyncio.to_thread(services.reader.completion, completion, secrets.randbits(SEED_BITS))
        asked, capture = services.sessions.opened(session, asked, completion)
        form = GenerateForm()
        head = head_of(form, body.request_id or secrets.token_hex(12), limits.model)
        return await answer(request, services.answering, asked, form, head, capture)

    @app.post("/tokenize", responses=REFUSALS)
    async def tokenize(body: TokenizeRequest) -> Response:
        """The ids of a text, or of a conversation by the model's chat template."""
        found = await asyncio.to_thread(tokenized, body, services.reader, tokenizer, limits)
        return Response(json_bytes(found), media_type="application/json")

    @app.post("/detokenize", responses=REFUSALS)
    async def detokenize(body: DetokenizeRequest) -> Response:
        """The text of ids, special tokens included."""
        found = await asyncio.to_thread(detokenized, body, services.reader, tokenizer)
        return Response(json_bytes(found), media_type="application/json")
