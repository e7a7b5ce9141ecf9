"""The real gateway and real replicas on the scripted engine in one process: what Ray would carry is called directly."""

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import msgspec
import ray
import torch
from support.ingress.local_ingress import LocalIngress, local_ingress
from support.learner.probe_learner import open_run
from support.runs.local_owner import LocalOwner, local_owner
from support.runs.probe_parts import Handle
from support.runs.scripted_owner import ScriptedOwner

from streamrl.config import Config
from streamrl.config.schema.learner import LearnerConfig
from streamrl.config.schema.rollout import RolloutConfig, SamplingConfig, ScriptedConfig
from streamrl.config.schema.run import GatewayConfig, ModelConfig, QueueConfig
from streamrl.gateway.auth import Scope
from streamrl.models.load import prepare_model_folder
from streamrl.observability.logs import release
from streamrl.services.gateway.actor import GatewayActor
from streamrl.services.gateway.guard import PATIENCE, Patience
from streamrl.services.queue.actor import QueueActor
from streamrl.services.reward.actor import RewardActor
from streamrl.services.rollout.actor import RolloutReplica
from streamrl.services.run.folder import RunFolder
from streamrl.services.run.gateway_tokens import token_path, write_tokens
from streamrl.services.weights.actor import WeightStoreActor
from streamrl.types import Version
from streamrl.weights.manifest import encode
from streamrl.weights.shm.shm import ShmPublisher

LONGEST_PROMPT = 40
TEMPLATE = (
    "{% for message in messages %}{{ message.role | length }}{{ message.content }}={% endfor %}"
    "{% if tools %}({{ tools | length }}){% endif %}"
)
"""In the letters of the tiny model."""
NO_TOOLS = "{% for message in messages %}{{ message.content }}={% endfor %}"
THROUGH_INGRESS = "STREAMRL_TESTS_THROUGH_INGRESS"
"""Where it is set, clients talk to an ingress of each run, not to its own server: so the tests of the one are those of
the other."""
ENDLESS: dict[str, Any] = {"most": 10**6, "latency_steps": 10**5, "step_s": 0.002}
"""Completions that do not end while a test lasts."""


class Direct:
    """In the place of Ray's handle of an actor: its methods, called in this loop. `die` is a `kill -9`. under_way: how
    many calls of each method have no answer yet."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self.under_way: Counter[str] = Counter()
        self._dead = asyncio.Event()

    def die(self) -> None:
        self._dead.set()

    def __getattr__(self, name: str) -> Any:
        return _Remote(lambda *args: self._called(name, args))

    async def _called(self, name: str, args: tuple[Any, ...]) -> Any:
        self.under_way[name] += 1
        work, death = asyncio.ensure_future(getattr(self._actor, name)(*args)), asyncio.ensure_future(self._dead.wait())
        try:
            await asyncio.wait({work, death}, return_when=asyncio.FIRST_COMPLETED)
            if death.done():
                raise ray.exceptions.ActorDiedError
            return work.result()
        finally:
            self.under_way[name] -= 1
            work.cancel()
            death.cancel()


class Held(Direct):
    """A handle by which no call of `method` comes through while `lets` is not set, as of a caller that stands still."""

    def __init__(self, actor: Any, method: str) -> None:
        super().__init__(actor)
        self._method = method
        self.lets = asyncio.Event()
        self.lets.set()

    async def _called(self, name: str, args: tuple[Any, ...]) -> Any:
        if name == self._method:
            await self.lets.wait()
        return await super()._called(name, args)


class _Remote:
    def __init__(self, call: Callable[..., Awaitable[Any]]) -> None:
        self._call = call

    def remote(self, *args: Any) -> "asyncio.Future[Any]":
        return asyncio.ensure_future(self._call(*args))


@dataclass
class LocalGateway:
    """url: of the running server. replicas: by name, with the handles that the gateway has. works: what a run that
    trains does all the time, its reward stage first; none of it ends while the run lasts. make: another gateway of the
    run. config: of the run. home: the gateway's own handle. ingress: that its clients talk to, if it is not the
    gateway."""

    url: str
    run: RunFolder
    actor: GatewayActor
    replicas: dict[str, RolloutReplica]
    handles: dict[str, Direct]
    http: aiohttp.ClientSession
    publisher: ShmPublisher
    store: Direct
    make: Callable[[], GatewayActor]
    config: Config
    home: Direct
    ingress: LocalIngress | None = None
    queue: Direct | None = None
    owner: LocalOwner | None = None
    works: list["asyncio.Task[None]"] = field(default_factory=list)

    @property
    def port(self) -> int:
        return self.actor._socket.getsockname()[1] if self.ingress is None else self.ingress.port

    def token(self, scope: Scope | None = None) -> str:
        return token_path(self.run, scope).read_text()

    async def ask(
        self, path: str, body: Any = None, *, headers: dict[str, str] | None = None, method: str | None = None
    ) -> tuple[int, Any]:
        """(status, JSON, text or bytes), with the token for everything unless `headers` say otherwise."""
        headers = {"authorization": f"Bearer {self.token()}"} if headers is None else headers
        method = method or ("GET" if body is None else "POST")
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        headers = {"content-type": "application/json", **headers}
        async with self.http.request(method, self.url + path, data=data, headers=headers) as response:
            if response.content_type == "application/octet-stream":
                return response.status, await response.read()
            if response.content_type == "text/event-stream":
                return response.status, None  # it may have no end
            text = await response.text()
            return response.status, json.loads(text) if response.content_type == "application/json" else text

    async def complete(self, **body: Any) -> tuple[int, Any]:
        return await self.ask("/v1/completions", {"model": "run", "prompt": "1+1=", **body})

    async def chat(self, content: Any = "1", **body: Any) -> tuple[int, Any]:
        messages = [{"role": "user", "content": content}]
        return await self.ask("/v1/chat/completions", {"model": "run", "messages": messages, **body})

    async def take_up(self, step: int) -> None:
        """Publish a version, which all replicas take up."""
        manifest = self.publisher.publish([("w", torch.full((2,), float(step)))], Version(0, step))
        await self.store.publish.remote(encode(manifest))
        for replica in self.replicas.values():
            await replica._take_up(manifest)

    async def end_queue(self) -> None:
        """Close the queue, and wait for the reward stage: a closed queue ends it, but not at once."""
        assert self.queue is not None
        await self.queue.close.remote()
        await self.works[0]

    async def idle(self) -> None:
        """Wait until no replica has a guest, and its engine nothing to do."""
        for replica in self.replicas.values():
            await until(lambda requests=replica._client_requests: not len(requests))
            # What was aborted is told by a step after that.
            while await asyncio.wrap_future(replica._thread.call(lambda engine: engine.has_work)):
                pass

    async def busy(self, *, requests: int = 1, name: str = "rollout-0") -> None:
        """Wait until a replica has so many client requests."""
        await until(lambda: len(self.replicas[name]._client_requests) >= requests)


async def until(done: Callable[[], bool]) -> None:
    """Let everything else go on until `done`."""
    while not done():  # noqa: ASYNC110 - nothing there has an event for tests
        await asyncio.sleep(0)


def configured(
    folder: Path,
    *,
    engine: str,
    most: int,
    latency_steps: int,
    slots: int,
    gateway: GatewayConfig,
    learner: LearnerConfig,
    **scripted: Any,
) -> Config:
    sampling = SamplingConfig(max_new_tokens=most)
    script = ScriptedConfig(latency_steps=latency_steps, **scripted)
    return Config(
        model=ModelConfig(path=str(folder)),
        rollout=RolloutConfig(engine=engine, slots=slots, journal_every_tokens=0, sampling=sampling, scripted=script),
        queue=QueueConfig(durability="memory", segment_bytes=2**20),
        gateway=gateway,
        learner=learner,
    )


@asynccontextmanager
async def local_gateway(
    folder: Path,
    *,
    replicas: int = 1,
    most: int = 24,
    longest_prompt: int = LONGEST_PROMPT,
    latency_steps: int = 4,
    slots: int = 64,
    engine: str = "scripted",
    template: str | None = TEMPLATE,
    finish: Callable[[Path], None] | None = None,
    gateway: GatewayConfig | None = None,
    learner: LearnerConfig | None = None,
    ready: bool = True,
    trains: bool = False,
    patience: Patience = PATIENCE,
    owned: bool = False,
    story: ScriptedOwner | None = None,
    **scripted: Any,
) -> AsyncIterator[LocalGateway]:
    """A run called `run`, its replicas under version 0.1, and its gateway. ready: the replicas serve; those of another
    engine than the scripted one need weights first. trains: it
    has a queue and a reward stage, and the replicas work for them; nobody learns. finish: is given the model's folder,
    in which template and tokenizer are still to change. patience: of the gateway with its
    clients. owned: it has an owner. story: an owner in its place, with what its controller says. scripted: of the
    engine."""
    model = folder / "model"
    model.mkdir(parents=True)
    for name, content in _model_files().items():
        (model / name).write_bytes(content)
    if template is not None:
        (model / "chat_template.jinja").write_text(template)
    if finish is not None:
        finish(model)
    settings = gateway or GatewayConfig(enabled=True)
    sizes = {"most": most, "latency_steps": latency_steps, "slots": slots}
    config = configured(model, engine=engine, gateway=settings, learner=learner or LearnerConfig(), **sizes, **scripted)
    run = open_run(config, folder / "run")
    write_tokens(run)
    async with AsyncExitStack() as stack:
        owner = await stack.enter_async_context(local_owner(run, config)) if owned else None
        if story is not None:
            await stack.enter_async_context(story.serving(run))
        publisher = stack.enter_context(ShmPublisher(run.run_id, run.key()))
        works: list[asyncio.Task[None]] = []
        queue = Direct(await _queue(stack, run, config, works)) if trains else None
        names = [f"rollout-{i}" for i in range(replicas)]
        started = {name: await _replica(stack, name, run, config, queue, longest_prompt) for name in names}
        controller = Handle(status=(lambda: {"steps": 3}) if story is None else story.answers)
        store = WeightStoreActor(str(run.path), config.deadlines.update_s)
        stack.push_async_callback(store.close)
        told = controller, queue or Handle(), Direct(store)

        def make() -> GatewayActor:
            return GatewayActor(str(run.path), msgspec.to_builtins(config), *told, patience=patience)

        actor = make()
        port = await actor.start(0, longest_prompt, config.gateway.port)
        serving = asyncio.create_task(actor.run())
        stack.push_async_callback(_end, actor, serving)
        http = await stack.enter_async_context(aiohttp.ClientSession())
        handles = {name: Direct(replica) for name, replica in started.items()}
        url, home, ingress = f"http://127.0.0.1:{port}", Direct(actor), None
        if os.environ.get(THROUGH_INGRESS):
            serving_now = handles if ready else {}
            ingress = await stack.enter_async_context(local_ingress(config, home, serving_now, patience=patience))
            url = ingress.url
        local = LocalGateway(
            url,
            run,
            actor,
            started,
            handles,
            http,
            publisher,
            told[-1],
            make,
            config,
            home,
            ingress,
            queue,
            owner,
            works,
        )
        if ready:
            await local.take_up(1)
            for replica in started.values() if trains else ():
                works.append(_runs(stack, replica.run()))
            await actor.serve(0, handles)
            pools = [actor._pool, *([] if ingress is None else [ingress.ingress._pool])]
            await until(lambda: all(len(pool._routes) == replicas for pool in pools))
        yield local
    release()


@cache
def _model_files() -> dict[str, bytes]:
    """Of the tiny model, by name: to write them takes a twentieth of what it takes to make them."""
    with TemporaryDirectory() as folder:
        made = Path(folder) / "model"
        prepare_model_folder(ModelConfig(preset="tiny-qwen3"), 0, made)
        return {path.name: path.read_bytes() for path in made.iterdir()}


async def _queue(
    stack: AsyncExitStack, run: RunFolder, config: Config, works: list["asyncio.Task[None]"]
) -> QueueActor:
    """A queue and a reward stage that works for it."""
    data = msgspec.to_builtins(config)
    queue = QueueActor(str(run.path), data)
    await queue.open(0, LONGEST_PROMPT)
    stack.push_async_callback(queue.close)
    reward = RewardActor(str(run.path), data, Direct(queue))
    await reward.start(await queue.next_epoch("reward"))
    works.append(_runs(stack, reward.run()))
    return queue


def _runs(stack: AsyncExitStack, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
    """Work that is taken back before its queue is closed: a closed queue ends it too, and both at once would cut off
    what it does at its end."""
    running = asyncio.create_task(work)

    async def end() -> None:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    stack.push_async_callback(end)
    return running


async def _replica(
    stack: AsyncExitStack, name: str, run: RunFolder, config: Config, queue: Any, longest_prompt: int
) -> RolloutReplica:
    store, runs = Handle(join=lambda *_: None), queue is not None
    queue = queue or Handle(serving=lambda *_: None, pause=lambda: "", next_epoch=lambda _: 0)
    await queue.next_epoch.remote(name)
    replica = RolloutReplica(name, str(run.path), msgspec.to_builtins(config), queue, store)
    await replica.start(0, longest_prompt)

    async def end() -> None:
        replica._client_requests.close()
        await asyncio.to_thread(replica._thread.stop)
        await asyncio.to_thread(replica._log.close)
        replica._observer.close()

    if not runs:  # else it ends itself
        stack.push_async_callback(end)
    return replica


async def _end(actor: GatewayActor, serving: "asyncio.Task[None]") -> None:
    await actor.close()
    await serving


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[Any]:
    """The events of a stream: JSON, and at its end "[DONE]"."""
    async for line in response.content:
        if line.startswith(b"data: "):
            data = line[6:].strip()
            yield "[DONE]" if data == b"[DONE]" else json.loads(data)
