"""The asynchronous client of one run."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec

from streamrl.client.address import Where
from streamrl.client.prompts import PromptInput, submitted
from streamrl.client.results import Result, Sample, version_of
from streamrl.client.trajectories import TrajectoryStatus, reward_of
from streamrl.client.uplink import FIRST_BREAK_S, LONGEST_BREAK_S, Uplink, refusal_of
from streamrl.client.weights import PIECE_BYTES, Weights, downloaded
from streamrl.config.schema.streams import DEFAULT_STREAM
from streamrl.errors import ComponentError, DeadlineError, DroppedError, RequestError
from streamrl.tasks.base import SubmittedPrompt
from streamrl.types import Version

AHEAD = 128
"""How many prompts of one `stream` are submitted and not yet answered."""


class Client:
    """The asynchronous client. `connect` makes it, under `async with`.

    Each method may be called beside any other, from one event loop.

    Example:
        async with streamrl.connect("runs/quickstart") as client:
            result = await client.submit({"prompt": "12+30=", "answer": "42"})
            print(result.rewards)
    """

    def __init__(self, where: Where, http: aiohttp.ClientSession, patience_s: float) -> None:
        self._where = where
        self._http = http
        self._patience_s = patience_s
        self._uplinks: dict[str, Uplink] = {}

    def submit(self, prompt: PromptInput, *, stream: str = DEFAULT_STREAM) -> "asyncio.Future[Result]":
        """Submit a prompt for training. The future gives its finished, scored group.

        Args:
            prompt: A text, or a mapping with `prompt` and optionally `key`. The other items of the mapping go to the
                reward function. The key names the prompt permanently: a second submission under the same key gets the
                same answer, after any crash, and nothing is generated twice.
            stream: The prompt stream of the run, a name in `gateway.stream_weights`.

        Raises:
            RequestError: The gateway refuses the prompt.
            DroppedError: The run will not train the prompt; raised by the future.
            ComponentError: The run did not answer for `patience_s`; raised by the future.

        Example:
            async with streamrl.connect("runs/quickstart") as client:
                result = await client.submit({"key": "a-1", "prompt": "12+30=", "answer": "42"})
                print(result.group, result.rewards)
        """
        if stream not in self._uplinks:
            self._uplinks[stream] = Uplink(self._http, self._where, stream, self._patience_s)
        return self._uplinks[stream].submit(submitted(prompt))

    async def stream(
        self,
        prompts: Iterable[PromptInput] | AsyncIterator[PromptInput],
        *,
        stream: str = DEFAULT_STREAM,
        ahead: int = AHEAD,
        dropped: bool = False,
    ) -> AsyncGenerator[Result | DroppedError, None]:
        """Submit prompts, and yield the group of each as it finishes, in any order.

        A slow loop slows the submission: at most `ahead` prompts are submitted and not yet taken by the loop. Leaving
        the loop cancels the prompts that have not finished.

        Args:
            prompts: An iterable or an asynchronous iterator of prompts, each as in `submit`. It may be endless.
            stream: The prompt stream of the run.
            ahead: The number of prompts in flight, at least 1.
            dropped: Yield a `DroppedError` for each prompt that will not be trained. False skips them.

        Raises:
            RequestError: The gateway refuses a prompt, or `ahead` is below 1.
            ComponentError: The run did not answer for `patience_s`.

        Example:
            prompts = ({"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(10))
            async with streamrl.connect("runs/quickstart") as client:
                async for result in client.stream(prompts, ahead=4):
                    print(result.key, result.rewards)
        """
        if ahead < 1:
            raise RequestError(f"ahead is {ahead}; at least one prompt is submitted at a time")
        places, ended = asyncio.Semaphore(ahead), asyncio.Queue[Result | DroppedError | None]()
        open_keys: set[str] = set()
        feeding = asyncio.create_task(self._feed(prompts, stream, places, ended, open_keys))
        try:
            while (one := await ended.get()) is not None:
                if isinstance(one, Result) or dropped:
                    yield one
                places.release()
            await feeding
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
            if open_keys:
                with suppress(RequestError, ComponentError, aiohttp.ClientError):
                    await self.cancel(sorted(open_keys), stream=stream)

    async def _feed(
        self,
        prompts: Iterable[PromptInput] | AsyncIterator[PromptInput],
        stream: str,
        places: asyncio.Semaphore,
        ended: "asyncio.Queue[Result | DroppedError | None]",
        open_keys: set[str],
    ) -> None:
        """Submit one prompt for each free place, and put each outcome into `ended`. None follows the last outcome, or
        the first failure, which is raised."""

        async def follow(prompt: SubmittedPrompt) -> None:
            try:
                ended.put_nowait(await self.submit(prompt, stream=stream))
            except DroppedError as error:
                ended.put_nowait(error)
            open_keys.discard(prompt.key)

        try:
            async with asyncio.TaskGroup() as following:
                async for given in _each(prompts):
                    await places.acquire()
                    prompt = submitted(given)
                    open_keys.add(prompt.key)
                    following.create_task(follow(prompt))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            ended.put_nowait(None)

    async def cancel(self, keys: Sequence[str], *, stream: str = DEFAULT_STREAM) -> int:
        """Cancel prompts that have not finished. Returns how many of them were being generated.

        Args:
            keys: The keys under which the prompts were submitted.
            stream: The stream to which they were submitted.

        Raises:
            RequestError: Nobody submitted one of the keys.
            ComponentError: The gateway does not answer.

        Example:
            async with streamrl.connect("runs/quickstart") as client:
                waiting = client.submit({"key": "a-2", "prompt": "1+1=", "answer": "2"})
                await waiting
                print(await client.cancel(["a-2"]))  # 0: it has finished
        """
        answer = await self._ask("POST", "/api/prompts/cancel", {"stream": stream, "keys": list(keys)})
        return int(answer["generating"])

    async def sample(
        self, prompt: str, *, n: int = 1, max_tokens: int | None = None, temperature: float = 1.0, **more: Any
    ) -> list[Sample]:
        """Sample completions of a prompt. Nothing of them is trained.

        Args:
            prompt: The text that the model continues.
            n: The number of completions.
            max_tokens: The bound of each completion, in tokens. None takes the server's default.
            temperature: 0 is greedy.
            more: Any other field of `POST /v1/completions`.

        Returns:
            `n` samples with their token ids and log-probs.

        Raises:
            RequestError: The gateway refuses a field.
            ComponentError: The gateway does not answer.

        Example:
            async with streamrl.connect("runs/quickstart") as client:
                for sample in await client.sample("12+30=", n=2, max_tokens=4):
                    print(sample.text, sum(sample.logprobs))
        """
        asked = {"prompt": prompt, "n": n, "temperature": temperature, "logprobs": 0, **more}
        if max_tokens is not None:
            asked["max_tokens"] = max_tokens
        models = await self._ask("GET", "/v1/models")
        answer = await self._ask("POST", "/v1/completions", {"model": models["data"][0]["id"], **asked})
        return [msgspec.convert({**choice, **choice["streamrl"]}, Sample) for choice in answer["choices"]]

    async def reward(
        self, session: str, reward: float, *, group: str | None = None, components: Mapping[str, float] | None = None
    ) -> TrajectoryStatus:
        """End a session with its reward: its calls become a trajectory that the run trains.

        The method returns when the trajectory is durable. It is safe to repeat: the same reward gets the same answer.

        Args:
            session: The id under which the agent made its calls (header `x-streamrl-session`).
            reward: A finite number.
            group: The name of the group within which rewards are compared. None takes the sessions that began with the
                same prompt.
            components: Further numbers by name, for the metrics.

        Raises:
            RequestError: The gateway refuses the reward, for example of an unknown session.
            ComponentError: The run did not answer for `patience_s`.

        Example:
            session = {"x-streamrl-session": "episode-17"}
            token = open("runs/quickstart/gateway-token").read()
            agent = openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=token, default_headers=session)
            await agent.completions.create(model="quickstart", prompt="12", max_tokens=4)
            async with streamrl.connect("runs/quickstart") as client:
                print(await client.reward("episode-17", 1.0, group="task-12"))
        """
        path = f"/api/sessions/{quote(session, safe='')}/reward"
        return msgspec.convert(await self._ask_until(path, reward_of(reward, group, components)), TrajectoryStatus)

    async def offer(self, trajectory: Mapping[str, Any]) -> TrajectoryStatus:
        """Submit a trajectory that another program sampled. The method returns when the trajectory is durable.

        Args:
            trajectory: The fields of `POST /api/trajectories`: `key`, `group`, `reward` and `turns`. Each turn has
                `prompt_token_ids`, `token_ids`, `logprobs` and `version_spans`.

        Raises:
            RequestError: The gateway refuses the trajectory, for example one that is too old.
            ComponentError: The run did not answer for `patience_s`.

        Example:
            async with streamrl.connect("runs/quickstart") as client:
                version = await client.wait_for_version(0)
                turn = {"prompt_token_ids": [5, 7], "token_ids": [4, 2], "logprobs": [-0.3, -0.1]}
                turn["version_spans"] = [[0, str(version)]]
                print(await client.offer({"key": "t-1", "group": "task-12", "reward": 1.0, "turns": [turn]}))
        """
        return msgspec.convert(await self._ask_until("/api/trajectories", trajectory), TrajectoryStatus)

    async def _ask_until(self, path: str, body: Mapping[str, Any]) -> Any:
        """Post until the run answers, for `patience_s` at most. Only for requests that are safe to repeat."""
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
        """The state of the run: the dictionary that `streamrl status --json` prints.

        Raises:
            ComponentError: The gateway does not answer.

        Example:
            async with streamrl.connect("runs/quickstart") as client:
                print(sorted(await client.status()))
        """
        answer: dict[str, Any] = await self._ask("GET", "/api/status")
        return answer

    async def scale(self, **parts: int) -> dict[str, Any]:
        """Set the number of rollout replicas or reward workers. Returns before they have started or stopped.

        Args:
            parts: `rollout=` replicas, `reward=` worker processes.

        Returns:
            The number of each part. `before` is the earlier number: of the one part, or by part where several are
            named.

        Raises:
            RequestError: The run cannot have that number.
            ResourceError: The machine has no memory for that many.
            ComponentError: The gateway does not answer.

        Example:
            async with streamrl.connect("runs/quickstart") as client:
                print(await client.scale(rollout=2))
        """
        answer: dict[str, Any] = await self._ask("POST", "/api/scale", parts)
        return answer

    async def wait_for_version(self, step: int, *, timeout_s: float | None = None) -> Version:
        """Wait until the weights of `step` or of a later step are published. Returns the newest version.

        Args:
            step: The training step; 0 is the initial model.
            timeout_s: The bound of the wait, in seconds. None waits as long as the run lasts.

        Raises:
            DeadlineError: The bound is over.
            RequestError: The gateway refuses the request.
            ComponentError: The run did not answer for `patience_s`.

        Example:
            async with streamrl.connect("runs/quickstart") as client:
                version = await client.wait_for_version(1, timeout_s=60)
                print(f"step {version.step} is published")
        """
        try:
            async with asyncio.timeout(timeout_s):
                while (newest := await self._newest_after(step - 1)) is None or newest.step < step:
                    pass
                return newest
        except TimeoutError as error:
            raise DeadlineError(f"{self._where}: no version of step {step} within {timeout_s:g} s") from error

    async def weights(self, path: str | Path, version: Version | str | None = None) -> Weights:
        """Download the weights of a version into a safetensors file.

        The digest of each tensor is checked on the way. The file appears under its name when it is complete; a file
        of that name stays as it is until then.

        Args:
            path: The file to write; its folder exists.
            version: A version, or its name such as "0.7". None takes the newest.

        Raises:
            RequestError: The run does not have that version any more.
            DataError: Bytes were damaged on the way.
            ComponentError: The connection broke, or another client is downloading.
            ConfigError: The path cannot be written.
            ResourceError: The disk is full.

        Example:
            async with streamrl.connect("runs/quickstart") as client:
                weights = await client.weights("policy.safetensors")
                print(weights.version, weights.num_bytes)
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
        """One long poll, repeated while the run is away. None: no newer version yet."""
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
        """Close the connections. The run goes on with the prompts that it has accepted. `async with` calls it."""
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


async def _each(prompts: Iterable[PromptInput] | AsyncIterator[PromptInput]) -> AsyncIterator[PromptInput]:
    if isinstance(prompts, str | Mapping):
        raise RequestError("a stream takes many prompts: give a list of them, or use submit for one")
    if hasattr(prompts, "__aiter__"):
        async for prompt in prompts:
            yield prompt
    else:
        for prompt in prompts:
            yield prompt
