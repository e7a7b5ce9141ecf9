"""The client of a script that has no event loop."""

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, TypeVar

from streamrl.client.client import Client
from streamrl.client.prompts import PromptInput
from streamrl.client.results import Result, Sample
from streamrl.client.trajectories import TrajectoryStatus
from streamrl.client.weights import Weights
from streamrl.config.schema.streams import DEFAULT_STREAM
from streamrl.types import Version

T = TypeVar("T")


class ScriptClient:
    """The client of a script without an event loop: its methods block. `connect` makes it, under `with`.

    Its methods are those of `Client` but for `stream`, with the same arguments and errors. They may be called from any
    thread; the connections live in a thread of their own.

    Example:
        with streamrl.connect("runs/quickstart") as client:
            futures = [client.submit({"prompt": f"{n}+1=", "answer": str(n + 1)}) for n in range(4)]
            print([future.result(timeout=60).rewards for future in futures])
            print(client.sample("12+30=", max_tokens=4)[0].text)
    """

    def __init__(self, connection: AbstractAsyncContextManager[Client]) -> None:
        self._connection = connection
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="streamrl client", daemon=True)
        self._thread.start()
        self._client = self._wait(connection.__aenter__())

    def submit(self, prompt: PromptInput, *, stream: str = DEFAULT_STREAM) -> "Future[Result]":
        """As `Client.submit`. `.result(timeout)` of the returned future blocks."""

        async def submitting() -> Result:
            return await self._client.submit(prompt, stream=stream)

        return asyncio.run_coroutine_threadsafe(submitting(), self._loop)

    def cancel(self, keys: Sequence[str], *, stream: str = DEFAULT_STREAM) -> int:
        """As `Client.cancel`."""
        return self._wait(self._client.cancel(keys, stream=stream))

    def sample(self, prompt: str, **more: Any) -> list[Sample]:
        """As `Client.sample`."""
        return self._wait(self._client.sample(prompt, **more))

    def reward(
        self, session: str, reward: float, *, group: str | None = None, components: Mapping[str, float] | None = None
    ) -> TrajectoryStatus:
        """As `Client.reward`."""
        return self._wait(self._client.reward(session, reward, group=group, components=components))

    def offer(self, trajectory: Mapping[str, Any]) -> TrajectoryStatus:
        """As `Client.offer`."""
        return self._wait(self._client.offer(trajectory))

    def status(self) -> dict[str, Any]:
        """As `Client.status`."""
        return self._wait(self._client.status())

    def scale(self, **parts: int) -> dict[str, Any]:
        """As `Client.scale`."""
        return self._wait(self._client.scale(**parts))

    def wait_for_version(self, step: int, *, timeout_s: float | None = None) -> Version:
        """As `Client.wait_for_version`."""
        return self._wait(self._client.wait_for_version(step, timeout_s=timeout_s))

    def weights(self, path: str | Path, version: Version | str | None = None) -> Weights:
        """As `Client.weights`."""
        return self._wait(self._client.weights(path, version))

    def close(self) -> None:
        """Close the connections and end the thread. `with` calls it."""
        try:
            self._wait(self._connection.__aexit__(None, None, None))
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
