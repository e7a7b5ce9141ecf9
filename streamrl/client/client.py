"""A client of one run: asynchronous, or for a script that has no event loop."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import aiohttp
import msgspec

from streamrl.client.address import Where
from streamrl.client.prompts import Ask, submitted
from streamrl.client.results import Result, Sample, version_of
from streamrl.client.trajectories import Standing, reward_of
from streamrl.client.uplink import FIRST_BREAK_S, LONGEST_BREAK_S, Uplink, refusal_of
from streamrl.client.weights import PIECE_BYTES, Weights, downloaded
from streamrl.errors import ComponentError, DeadlineError, DroppedError, RequestError
from streamrl.streams import DEFAULT_STREAM
from streamrl.tasks.base import SubmittedPrompt
from streamrl.types import Version

T = TypeVar("T")

AHEAD = 128
"""Prompts of one `stream` that are submitted and not answered."""
PATIENCE_S = 120.0
"""A run that is started again answers within it."""


class Client:
    """Asynchronous; made by `connect`.

    Example:
        async with streamrl.connect("runs/quickstart") as client:
            result = await client.submit({"prompt": "12+30=", "answer": "42"})
    """

    def __init__(self, where: Where, http: aiohttp.ClientSession, patience_s: float) -> None:
        self._where = where
        self._http = http
        self._patience_s = patience_s
        self._uplinks: dict[str, Uplink] = {}

    def submit(self, ask: Ask, *, stream: str = DEFAULT_STREAM) -> "asyncio.Future[Result]":
        """Have a prompt trained on. Await what becomes of it.

        ask: a text, or a mapping with `prompt`; its `key` names the prompt for ever: submitted again under it, by
        whomever and after whatever crash, it is answered again and not generated again. All else of the mapping is
        for the reward.

        The future raises RequestError for what the gateway refuses, DroppedError for a prompt that will not be
        trained, ComponentError when the run did not answer for `patience_s`.
        """
        if stream not in self._uplinks:
            self._uplinks[stream] = Uplink(self._http, self._where, stream, self._patience_s)
        return self._uplinks[stream].submit(submitted(ask))

    async def stream(
        self,
        asks: Iterable[Ask] | AsyncIterator[Ask],
        *,
        stream: str = DEFAULT_STREAM,
        ahead: int = AHEAD,
        dropped: bool = False,
    ) -> AsyncIterator[Result | DroppedError]:
        """Submit prompts, and give each as it finishes, in whatever order that is.

        No more than `ahead` of them are submitted and not yet taken by the loop: a slow loop slows what it submits.
        dropped: give those that were dropped too, as their errors; else they are passed over. Leaving the loop cancels
        what has not finished. Raises what `submit` does, but for DroppedError.
        """
        if ahead < 1:
            raise RequestError(f"ahead is {ahead}; at least one prompt is submitted at a time")
        room, ended = asyncio.Semaphore(ahead), asyncio.Queue[Result | DroppedError | None]()
        open_keys: set[str] = set()
        feeding = asyncio.create_task(self._feed(asks, stream, room, ended, open_keys))
        try:
            while (one := await ended.get()) is not None:
                if isinstance(one, Result) or dropped:
                    yield one
                room.release()
            await feeding
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
            if open_keys:
                with suppress(RequestError, ComponentError, aiohttp.ClientError):
                    await self.cancel(sorted(open_keys), stream=stream)

    async def _feed(
        self,
        asks: Iterable[Ask] | AsyncIterator[Ask],
        stream: str,
        room: asyncio.Semaphore,
        ended: "asyncio.Queue[Result | DroppedError | None]",
        open_keys: set[str],
    ) -> None:
        """Submit as many as there is room for, and put each into `ended`; None behind the last, or the first failure,
        which is raised."""

        async def follow(prompt: SubmittedPrompt) -> None:
            try:
                ended.put_nowait(await self.submit(prompt, stream=stream))
            except DroppedError as error:
                ended.put_nowait(error)
            open_keys.discard(prompt.key)

        try:
            async with asyncio.TaskGroup() as following:
                async for ask in _each(asks):
                    await room.acquire()
                    prompt = submitted(ask)
                    open_keys.add(prompt.key)
                    following.create_task(follow(prompt))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            ended.put_nowait(None)

    async def cancel(self, keys: Sequence[str], *, stream: str = DEFAULT_STREAM) -> int:
        """Give up prompts that have not finished; how many of them were being generated. Raises RequestError for a key
        that nobody submitted."""
        answer = await self._ask("POST", "/api/prompts/cancel", {"stream": stream, "keys": list(keys)})
        return int(answer["generating"])

    async def sample(
        self, prompt: str, *, n: int = 1, max_tokens: int | None = None, temperature: float = 1.0, **more: Any
    ) -> list[Sample]:
        """Completions beside the training, which nobody learns from. more: what `/v1/completions` takes."""
        asked = {"prompt": prompt, "n": n, "temperature": temperature, "logprobs": 0, **more}
        if max_tokens is not None:
            asked["max_tokens"] = max_tokens
        models = await self._ask("GET", "/v1/models")
        answer = await self._ask("POST", "/v1/completions", {"model": models["data"][0]["id"], **asked})
        return [msgspec.convert({**choice, **choice["streamrl"]}, Sample) for choice in answer["choices"]]

    async def reward(
        self, session: str, reward: float, *, group: str | None = None, components: Mapping[str, float] | None = None
    ) -> Standing:
        """End a session with its reward, and have it trained on; what became of it, once it is durable.

        session: the id that its calls were made under. group: shared with those that the reward is compared with;
        without it, those that began with the same prompt. Sent again, whatever broke meanwhile, it has the same answer.

        Raises:
            RequestError: the gateway refuses it, and would again. ComponentError: the run did not answer for
                `patience_s`.
        """
        path = f"/api/sessions/{quote(session, safe='')}/reward"
        return msgspec.convert(await self._ask_until(path, reward_of(reward, group, components)), Standing)

    async def offer(self, trajectory: Mapping[str, Any]) -> Standing:
        """Have a trajectory trained on that was made elsewhere; what became of it, once it is durable.

        trajectory: what `POST /api/trajectories` takes: `key`, `group`, `reward` and `turns`. Raises what `reward`
        does.
        """
        return msgspec.convert(await self._ask_until("/api/trajectories", trajectory), Standing)

    async def _ask_until(self, path: str, body: Mapping[str, Any]) -> Any:
        """The answer to what may be asked again, as often as the run is away for `patience_s` at most."""
        pause, since = FIRST_BREAK_S, time.monotonic()
        while True:
            try:
                return await self._ask("POST", path, body)
            except ComponentError:
                if time.monotonic() - since > self._patience_s:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_BREAK_S)

    async def status(self) -> dict[str, Any]:
        """What `streamrl status` says."""
        answer: dict[str, Any] = await self._ask("GET", "/api/status")
        return answer

    async def scale(self, **parts: int) -> dict[str, Any]:
        """Have more or fewer of some parts from now on: `rollout` replicas, `reward` children. Waits for none of them.

        Returns the number of each part, and under `before` what it was, by part where several are named. Raises
        RequestError for what the run could not have, ResourceError where its machine has no memory for so many.
        """
        answer: dict[str, Any] = await self._ask("POST", "/api/scale", parts)
        return answer

    async def wait_for_version(self, step: int, *, timeout_s: float | None = None) -> Version:
        """Wait until weights of `step` or a later one are published; the newest version then. The run answers when it
        has them.

        timeout_s: None waits as long as the run lasts. Raises DeadlineError when that is over, RequestError for what
        the gateway refuses, ComponentError when the run did not answer for `patience_s`.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while (newest := await self._newest_after(step - 1)) is None or newest.step < step:
                    pass
                return newest
        except TimeoutError as error:
            raise DeadlineError(f"{self._where}: no version of step {step} within {timeout_s:g} s") from error

    async def weights(self, path: str | Path, version: Version | str | None = None) -> Weights:
        """Download the weights of a version into a safetensors file, the newest one's unless it is named ("0.7"). Their
        digests are checked while they come; the file has its name when they are whole, and what had it before stays
        until then.

        Raises RequestError for a version that the run does not have any more, DataError for bytes that were damaged,
        ComponentError when the connection broke or another client reads, ConfigError and ResourceError for a path where
        nothing can be written.
        """
        address = self._where.find()
        headers = {"authorization": f"Bearer {address.token}"}
        params = {} if version is None else {"version": str(version)}
        try:
            async with self._http.get(f"{address.url}/api/weights", params=params, headers=headers) as response:
                if response.status != 200:
                    raise refusal_of(response.status, await response.read())
                return await downloaded(response.content.iter_chunked(PIECE_BYTES), Path(path))
        except (aiohttp.ClientError, ConnectionError) as error:
            raise ComponentError(f"{self._where}: the weights did not come whole: {error}") from error

    async def _newest_after(self, step: int) -> Version | None:
        """The answer to one question, which is asked again while the run is away."""
        away_since, pause = None, FIRST_BREAK_S
        while True:
            try:
                answer = await self._ask("GET", f"/api/versions?after={step}")
                return None if answer["version"] is None else version_of(answer["version"])
            except ComponentError:
                away_since = away_since or time.monotonic()
                if time.monotonic() - away_since > self._patience_s:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_BREAK_S)

    async def close(self) -> None:
        """Submit no more. What was accepted goes on in the run."""
        await asyncio.gather(*(uplink.close() for uplink in self._uplinks.values()))

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        address = self._where.find()
        headers = {"authorization": f"Bearer {address.token}"}
        try:
            async with self._http.request(method, address.url + path, json=body, headers=headers) as response:
                content = await response.read()
        except (aiohttp.ClientError, ConnectionError) as error:
            raise ComponentError(f"{self._where}: the gateway does not answer: {error}") from error
        if response.status != 200:
            raise refusal_of(response.status, content)
        return msgspec.json.decode(content)


class ScriptClient:
    """The same for a script: its methods wait. Its connection lives in a thread of its own; made by `connect`.

    Example:
        with streamrl.connect("runs/quickstart") as client:
            future = client.submit({"prompt": "12+30=", "answer": "42"})
            print(future.result(timeout=60).rewards)
    """

    def __init__(self, connection: "_Connection") -> None:
        self._connection = connection
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="streamrl client", daemon=True)
        self._thread.start()
        self._client = self._wait(connection.__aenter__())

    def submit(self, ask: Ask, *, stream: str = DEFAULT_STREAM) -> "Future[Result]":
        """As `Client.submit`; `.result(timeout)` waits."""

        async def submitting() -> Result:
            return await self._client.submit(ask, stream=stream)

        return asyncio.run_coroutine_threadsafe(submitting(), self._loop)

    def cancel(self, keys: Sequence[str], *, stream: str = DEFAULT_STREAM) -> int:
        return self._wait(self._client.cancel(keys, stream=stream))

    def sample(self, prompt: str, **more: Any) -> list[Sample]:
        return self._wait(self._client.sample(prompt, **more))

    def reward(
        self, session: str, reward: float, *, group: str | None = None, components: Mapping[str, float] | None = None
    ) -> Standing:
        return self._wait(self._client.reward(session, reward, group=group, components=components))

    def offer(self, trajectory: Mapping[str, Any]) -> Standing:
        return self._wait(self._client.offer(trajectory))

    def status(self) -> dict[str, Any]:
        return self._wait(self._client.status())

    def scale(self, **parts: int) -> dict[str, Any]:
        return self._wait(self._client.scale(**parts))

    def wait_for_version(self, step: int, *, timeout_s: float | None = None) -> Version:
        return self._wait(self._client.wait_for_version(step, timeout_s=timeout_s))

    def weights(self, path: str | Path, version: Version | str | None = None) -> Weights:
        return self._wait(self._client.weights(path, version))

    def close(self) -> None:
        try:
            self._wait(self._connection.__aexit__(None, None, None))
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class _Connection:
    """What `connect` gives: for `async with`, or for `with`."""

    def __init__(self, where: Where, patience_s: float) -> None:
        self._where = where
        self._patience_s = patience_s
        self._stack = AsyncExitStack()
        self._script: ScriptClient | None = None

    async def __aenter__(self) -> Client:
        # As long as the run needs: a group may take minutes, and a broken connection is noticed by itself.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0)
        connector = aiohttp.TCPConnector(limit=0)
        session = aiohttp.ClientSession(timeout=timeout, connector=connector, trust_env=False)
        http = await self._stack.enter_async_context(session)
        client = Client(self._where, http, self._patience_s)
        self._stack.push_async_callback(client.close)
        return client

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def __enter__(self) -> ScriptClient:
        self._script = ScriptClient(self)
        return self._script

    def __exit__(self, *_: object) -> None:
        if self._script is not None:
            self._script.close()


def connect(target: str | Path, *, token: str | None = None, patience_s: float = PATIENCE_S) -> _Connection:
    """Connect to a live run whose gateway is enabled: `async with` for a `Client`, `with` for a `ScriptClient`.

    target: the run's folder, or its gateway's URL, which needs a token (of the scope that is used: `submit` for
    prompts, `generate` for samples, `control` for the rest). patience_s: how long a run that is away, as while it
    is started again, is waited for.
    """
    return _Connection(Where(target, token), patience_s)


async def _each(asks: Iterable[Ask] | AsyncIterator[Ask]) -> AsyncIterator[Ask]:
    if isinstance(asks, str | Mapping):
        raise RequestError("a stream takes many prompts: give a list of them, or use submit for one")
    if hasattr(asks, "__aiter__"):
        async for ask in asks:
            yield ask
    else:
        for ask in asks:
            yield ask
