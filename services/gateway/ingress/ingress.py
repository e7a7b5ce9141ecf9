"""A further gateway of a run, as an ASGI application: what it needs came to it by messages, so it may be on any node.

Guarantees: who is refused here is refused by the same guard as at the run's own gateway, in the same words; what it
answers is the same application's answer. Whatever is a part of a session, and whatever needs the run's folder, the
run's own gateway answers (`streamrl.gateway.anywhere`). Its limits are its own, as those of each gateway.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray.actor import ActorHandle

from streamrl.config import Config
from streamrl.conversations.memory import NOTHING, Memory
from streamrl.conversations.tool_calls import MessageReader
from streamrl.gateway.anywhere import answered_anywhere
from streamrl.gateway.auth import Doorkeeper
from streamrl.gateway.openai.bodies import ChatRequest, CompletionRequest
from streamrl.gateway.openai.chat import load_chat_template
from streamrl.gateway.openai.requests import ParsedRequest, Reader
from streamrl.gateway.refusal import Refusal
from streamrl.gateway.routes import STREAMED
from streamrl.gateway.sessions.capture import Capture
from streamrl.models.tokenizer import load_tokenizer
from streamrl.services.gateway.answering import Answering
from streamrl.services.gateway.app import make_model_app
from streamrl.services.gateway.engine_limits import engine_limits
from streamrl.services.gateway.gateway_services import ModelServices
from streamrl.services.gateway.guard import PATIENCE, App, Guard, Patience, Receive, Scope, Send, whole_body
from streamrl.services.gateway.ingress.messages import IngressFacts
from streamrl.services.gateway.ingress.relay import BrokenOffError, Relay
from streamrl.services.gateway.path_prefix import PathPrefix
from streamrl.services.gateway.pool import Pool


class NoSessions:
    """In the place of `SessionService`: calls of sessions are passed on before they come here."""

    def memory(self, name: str | None) -> Memory:
        _require_none(name)
        return NOTHING

    def opened(
        self,
        name: str | None,
        asked: ParsedRequest,
        body: ChatRequest | CompletionRequest,
        reader: MessageReader | None = None,
    ) -> tuple[ParsedRequest, Capture | None]:
        _require_none(name)
        return asked, None


class Ingress:
    """See the module. name: of it, unique in the run for ever. facts: of the run's own gateway.

    Example:
        ingress = Ingress("ingress-3f2a", config, facts, tell)
        ingress.serve(home, {"rollout-0": replica})
        await ingress(scope, receive, send)
    """

    def __init__(
        self, name: str, config: Config, facts: IngressFacts, tell: Any, patience: Patience = PATIENCE
    ) -> None:
        gateway = config.gateway
        self._pool = Pool(0, config.deadlines.start_s, tell, name)
        self._relay = Relay(name, tell)
        self._app: App = make_model_app(self._services(config, facts))
        guard = Guard(
            self._routed,
            Doorkeeper(facts.key, gateway.names),
            max_body_bytes=gateway.max_body_bytes,
            max_requests=gateway.max_requests,
            count=self._relay.count,
            patience=patience,
        )
        self._door: App = PathPrefix(guard, gateway.path_prefix) if gateway.path_prefix else guard

    @property
    def ready(self) -> bool:
        """Whether requests of all kinds can be answered."""
        return self._pool.ready and self._relay.ready

    def serve(self, home: ActorHandle | None, replicas: Mapping[str, ActorHandle]) -> None:
        """The run's own gateway, None while there is none, and the replicas that serve, from now on."""
        self._relay.use(home)
        self._pool.serve(replicas)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._door(scope, receive, send)

    async def close(self) -> None:
        await self._relay.close()
        await self._pool.close()

    async def _routed(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Of what the guard let through."""
        body = None
        if scope["path"] not in STREAMED:
            body = (await receive()).get("body", b"")  # the guard has all of it
            names = {name.decode("latin-1").lower() for name, _ in scope["headers"]}
            if answered_anywhere(scope["path"], names, body):
                await self._app(scope, whole_body(body, receive), send)
                return
        try:
            await self._relay.answer(scope, body, receive, send)
        except BrokenOffError as error:
            # As for a client that reads nothing: the connection closes with an answer that is not whole.
            raise TimeoutError(str(error)) from error

    def _services(self, config: Config, facts: IngressFacts) -> ModelServices:
        with tempfile.TemporaryDirectory(prefix="streamrl-ingress-") as folder:
            for name, content in facts.files.items():
                (Path(folder) / name).write_bytes(content)
            tokenizer, template = load_tokenizer(folder), load_chat_template(Path(folder))
        limits = engine_limits(config, facts.name, facts.longest_row, tokenizer)
        parsers = config.gateway.tool_call_parser, config.gateway.reasoning_parser
        sampled = lambda count: self._relay.count("", count)  # noqa: E731 - it has no other name
        return ModelServices(
            reader=Reader(limits, tokenizer, template, *parsers),
            limits=limits,
            tokenizer=tokenizer,
            pool=self._pool,
            answering=Answering(self._pool, tokenizer, limits.context, config.deadlines.rollout_s, sampled),
            created=facts.created,
            sessions=NoSessions(),
        )


def _require_none(name: str | None) -> None:
    if name is not None:
        raise Refusal(500, "internal_error", f"session {name!a} came to a gateway that keeps none; it is a bug")
