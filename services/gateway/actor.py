"""The gateway: an HTTP server in an actor of the run's own, through which clients reach the replicas.

It holds nothing that anybody needs when it dies: requests under way end with it, the replicas abort them, and its
keeper starts another on the same port. It is no Ray Serve deployment (`docs/architecture.md` says why).
"""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import uvicorn
from ray.actor import ActorHandle

from streamrl.algorithms.group_sampling import GroupSampling
from streamrl.clock import SystemClock
from streamrl.config import Config
from streamrl.config.estimates.sizes import longest_row
from streamrl.config.schema.run import GatewayConfig
from streamrl.gateway.auth import Doorkeeper, session_token
from streamrl.gateway.openai.chat import load_chat_template
from streamrl.gateway.openai.requests import Limits, Reader
from streamrl.gateway.page.prometheus import GatewayCounts
from streamrl.gateway.prompts.lines import PromptReader
from streamrl.gateway.sessions.sessions import Sessions
from streamrl.models.tokenizer import TextTokenizer, load_tokenizer
from streamrl.services.actors.observe import Observer
from streamrl.services.gateway.answering import Answering
from streamrl.services.gateway.app import make_app
from streamrl.services.gateway.controls import ControlService
from streamrl.services.gateway.engine_limits import engine_limits
from streamrl.services.gateway.gateway_services import GatewayServices
from streamrl.services.gateway.guard import PATIENCE, Guard, Patience
from streamrl.services.gateway.heads import BoundedHeads
from streamrl.services.gateway.ingress.desk import RelayDesk
from streamrl.services.gateway.ingress.messages import IngressFacts, News, Order
from streamrl.services.gateway.page.routes import add_page
from streamrl.services.gateway.page.watch import RunWatch
from streamrl.services.gateway.path_prefix import PathPrefix
from streamrl.services.gateway.pool import Pool
from streamrl.services.gateway.training.prompts import PromptService
from streamrl.services.gateway.training.rows import GatewayRows
from streamrl.services.gateway.training.samples import SampleService
from streamrl.services.gateway.training.sessions import SessionService
from streamrl.services.gateway.training.trajectories import TrajectoryService
from streamrl.services.gateway.versions import VersionService
from streamrl.services.gateway.weights import WeightsService
from streamrl.services.queue.trajectory_log import TrajectoryLog
from streamrl.services.run.folder import RunFolder
from streamrl.services.run.gateway_address import listen
from streamrl.services.run.layout import model_folder

KEEP_ALIVE_S = 30
CLOSE_S = 1.0
"""What requests under way have to end when the run does."""
FILE_BYTES: Final = 2**26
"""Of one small file of the model's folder, which ingresses are told of."""


class GatewayActor:
    """See the module."""

    def __init__(
        self,
        run_folder: str,
        config: dict[str, Any],
        controller: ActorHandle,
        queue: ActorHandle,
        store: ActorHandle,
        home: ActorHandle | None = None,
        patience: Patience = PATIENCE,
    ) -> None:
        self._config = msgspec.convert(config, Config)
        self._run = RunFolder.open(Path(run_folder))
        self._controller = controller
        self._queue = queue
        self._versions = VersionService(store, patience.hold_s)
        self._weights = WeightsService(self._run, store)
        self._home = home
        self._patience = patience
        self._told = -1

    async def start(self, session: int, longest_prompt: int, port: int) -> int:
        """Listen, and give the port. session: the number of this gateway, higher than of all before. longest_prompt: in
        tokens, of the task; what engines were made for. port: 0 for any that is free.

        Raises ResourceError when the port is taken, ConfigError for what the model's folder or the certificate is not.
        """
        self._observer = Observer(self._run, self._config, "gateway")
        config = self._config
        self._pool = Pool(session, config.deadlines.start_s, self._tell)
        self._socket = listen(config.gateway, port, self._patience.send_s)
        self._weights.begin()
        counts = GatewayCounts()
        self._watch = RunWatch(self._run, config, self._status)
        app = make_app(self._services(longest_prompt, counts))
        add_page(app, self._watch)
        self._desk = RelayDesk(app, counts)
        guard = Guard(
            app,
            Doorkeeper(self._run.key(), config.gateway.names),
            max_body_bytes=config.gateway.max_body_bytes,
            max_requests=config.gateway.max_requests,
            count=counts.answered,
            patience=self._patience,
        )
        prefix = config.gateway.path_prefix
        door = PathPrefix(guard, prefix) if prefix else guard
        self._server = uvicorn.Server(server_settings(config.gateway, door, self._patience.head_s))
        bound: int = self._socket.getsockname()[1]
        self._observer.log.info("listens", host=config.gateway.host, port=bound, session=session)
        return bound

    async def serve(self, number: int, replicas: dict[str, ActorHandle]) -> None:
        """These replicas serve now. number: of this word; an older one that comes late is ignored."""
        if number > self._told:
            self._told = number
            self._pool.serve(replicas)

    async def until_ready(self) -> None:
        """Wait for a replica, with which completions can be had."""
        await self._pool.until_ready()

    async def run(self) -> None:
        """Answer until `close`."""
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            await self._desk.close()
            await self._pool.close()
            await self._versions.close()
            await self._prompts.ends.close()
            await self._watch.close()
            self._rows.close()
            self._samples.close()
            await asyncio.to_thread(self._trajectories.close)
            self._observer.close()

    async def close(self) -> None:
        """End `run`, requests under way after a moment."""
        self._server.should_exit = True
        await self._watch.end()

    # ---- called by ingresses, the further gateways of the run

    async def ingress_facts(self) -> IngressFacts:
        """What one needs to know to answer clients."""
        folder = model_folder(self._run.path, self._config)
        files = await asyncio.to_thread(_small_files, folder)
        return IngressFacts(self._run.key(), self._run.name, self._created, self._longest_row, files)

    async def relay_orders(self, ingress: str, orders: list[Order]) -> int:
        """What an ingress passes on (`RelayDesk.take`)."""
        return self._desk.take(ingress, orders)

    async def relay_news(self, ingress: str) -> tuple[int, list[News]]:
        """What came of it (`RelayDesk.news`); waits for some, a second at most."""
        return await self._desk.news(ingress)

    # ---- inside

    @property
    def _created(self) -> int:
        return self._run.record.created_ns // 10**9

    def _services(self, longest_prompt: int, counts: GatewayCounts) -> GatewayServices:
        config = self._config
        folder = model_folder(self._run.path, config)
        tokenizer = load_tokenizer(folder)
        self._longest_row = longest_row(config, longest_prompt)
        limits = engine_limits(config, self._run.name, self._longest_row, tokenizer)
        self._rows = GatewayRows(self._run.path, tokenizer, self._home, config.deadlines.step_s)
        parsers = config.gateway.tool_call_parser, config.gateway.reasoning_parser
        return GatewayServices(
            reader=Reader(limits, tokenizer, load_chat_template(folder), *parsers),
            limits=limits,
            tokenizer=tokenizer,
            pool=self._pool,
            answering=Answering(self._pool, tokenizer, limits.context, config.deadlines.rollout_s, counts.sampled),
            counts=counts,
            status=self._status,
            created=self._created,
            prompts=self._prompt_service(tokenizer, longest_prompt),
            controls=ControlService(self._run.path),
            versions=self._versions,
            weights=self._weights,
            samples=self._sample_service(tokenizer),
            trajectories=self._trajectory_service(limits),
            sessions=self._session_service(tokenizer),
            session_token=partial(session_token, self._run.key()),
        )

    def _sample_service(self, tokenizer: TextTokenizer) -> SampleService:
        self._samples = SampleService(self._queue, self._rows, tokenizer, self._config, self._run.tokens_path)
        return self._samples

    def _prompt_service(self, tokenizer: TextTokenizer, longest_prompt: int) -> PromptService:
        gateway = self._config.gateway
        self._prompts = PromptService(
            PromptReader(tokenizer, longest_prompt, gateway.max_payload_bytes),
            self._rows,
            self._queue,
            self._pool.abort_groups,
            max_prompts=gateway.max_prompts,
            max_line_bytes=gateway.max_body_bytes,
            idle_s=self._patience.idle_s,
        )
        return self._prompts

    def _trajectory_service(self, limits: Limits) -> TrajectoryService:
        log = TrajectoryLog(self._run.path, self._config, lambda writer: self._queue.next_epoch.remote(writer))
        self._trajectories = TrajectoryService(self._config, self._queue, log, limits.context, limits.vocab_size)
        return self._trajectories

    def _session_service(self, tokenizer: TextTokenizer) -> SessionService:
        gateway, drawn = self._config.gateway, GroupSampling(self._config).drawn
        self._sessions = Sessions(SystemClock(), gateway.session_idle_s, gateway.session_bytes)
        strict = gateway.session_sampling == "asked"
        return SessionService(self._sessions, self._trajectories, tokenizer, drawn, strict)

    async def _status(self) -> dict[str, Any]:
        return await self._controller.status.remote()

    def _tell(self, text: str) -> None:
        self._observer.log.warning("notice", text=text)


def server_settings(gateway: GatewayConfig, app: Any, head_s: float) -> uvicorn.Config:
    """What the HTTP server is told. head_s: see `BoundedHeads`. It writes no access log: that would be as long as the
    run has requests."""
    return uvicorn.Config(
        app,
        http=partial(BoundedHeads, head_s=head_s),  # type: ignore[arg-type]
        ssl_certfile=gateway.tls_cert,
        ssl_keyfile=gateway.tls_key,
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=int(CLOSE_S),
    )


def _small_files(folder: Path) -> dict[str, bytes]:
    """Of a model's folder what tokenizer and chat template are made of, by name: no weights, and no table of them."""
    found = (path for path in folder.iterdir() if path.suffix in (".json", ".jinja", ".txt", ".model"))
    wanted = (path for path in found if path.is_file() and not path.name.endswith(".index.json"))
    return {path.name: path.read_bytes() for path in wanted if path.stat().st_size <= FILE_BYTES}
