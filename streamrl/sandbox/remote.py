"""The level `remote`: a server that runs programs, by the protocol of SandboxFusion (`POST /run_code`).

What such a server holds back is its own affair: it is another machine. Two programs that talk to each other it does not
have.
"""

import asyncio
import base64
from typing import Any, Final

import aiohttp
import msgspec

from streamrl.config.schema.sandbox import SandboxConfig
from streamrl.errors import ComponentError, ConfigError
from streamrl.sandbox.program import Ending, Finished, Limits, Program, checked, limits_of
from streamrl.sandbox.wire import REMOTE

_MARGIN_S: Final = 30.0
_MOST_BYTES: Final = 2**26


class _Result(msgspec.Struct):
    """`run_result`. return_code: absent where the program was ended."""

    status: str
    execution_time: float | None = None
    return_code: int | None = None
    stdout: str | None = None
    stderr: str | None = None


class _Answer(msgspec.Struct):
    status: str
    message: str | None = None
    run_result: _Result | None = None


class RemoteSandbox:
    """Runs programs on the server at `sandbox.url`."""

    def __init__(self, config: SandboxConfig) -> None:
        self.limits = limits_of(config)
        self._url = str(config.url).rstrip("/")

    def start(self) -> str:
        """Try the server out. Raises ConfigError for one that is not there, or runs no program."""
        try:
            finished = asyncio.run(self.run(Program(source="print(6 * 7)")))
        except ComponentError as error:
            raise ConfigError(f"sandbox.url = {self._url!r}: {error}") from error
        if finished.stdout != b"42\n":
            raise ConfigError(f"sandbox.url = {self._url!r}: print(6 * 7) gave {finished.stdout[:100]!r} there")
        return REMOTE

    async def run(self, program: Program, limits: Limits | None = None) -> Finished:
        """Raises as `Sandbox.run` does."""
        given = limits or self.limits
        checked(program)
        if program.arguments:
            raise ComponentError("sandbox: a remote one gives a program no arguments")
        body = {
            "code": program.source,
            "language": "python",
            "stdin": program.stdin.decode("utf-8", "surrogateescape"),
            "run_timeout": given.time_s,
            "memory_limit_MB": given.memory_bytes // 2**20,
            "files": {name: base64.b64encode(text.encode()).decode() for name, text in program.files.items()},
        }
        return _finished(await self._post(body, given.time_s + _MARGIN_S), given)

    async def run_pair(self, first: Program, second: Program, limits: Limits | None = None) -> Finished:
        """Raises ComponentError: tests beside the program that they test could be told by it that they pass."""
        raise ComponentError("sandbox: test programs want two sandboxes that talk; set sandbox.level to a local one")

    def close(self) -> None:
        """Nothing of it is kept between calls."""

    async def _post(self, body: dict[str, Any], timeout_s: float) -> _Answer:
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        where = f"{self._url}/run_code"
        try:
            session_of = aiohttp.ClientSession(timeout=timeout, trust_env=True)
            async with session_of as session, session.post(where, json=body) as answer:
                data = await answer.content.read(_MOST_BYTES)
                if answer.status != 200:
                    raise ComponentError(f"sandbox: {where}: status {answer.status}: {data[:200]!r}")
            return msgspec.json.decode(data, type=_Answer)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ComponentError(f"sandbox: {where}: {type(error).__name__}: {error}") from error
        except msgspec.DecodeError as error:
            raise ComponentError(f"sandbox: {where} answers in another form: {error}") from error


def _finished(answer: _Answer, limits: Limits) -> Finished:
    result = answer.run_result
    if result is None or answer.status == "SandboxError":
        raise ComponentError(f"sandbox: the server says {answer.status}: {answer.message or 'and not why'}")
    ending = Ending.TIME if result.status == "TimeLimitExceeded" else Ending.EXITED
    stdout, stderr = ((text or "").encode() for text in (result.stdout, result.stderr))
    if len(stdout) + len(stderr) > limits.output_bytes:
        ending, stdout, stderr = Ending.OUTPUT, stdout[: limits.output_bytes], stderr[: limits.output_bytes]
    seconds = result.execution_time or 0.0
    code = result.return_code if result.return_code is not None else 137
    return Finished(ending=ending, exit_code=code, stdout=stdout, stderr=stderr, wall_s=seconds, cpu_s=seconds)
