"""One reward child process, as the pool sees it: start, ask, kill.

Guarantees that after a time-out or a death the child is gone and reaped, with every program that it started
in its session, and that the next `ask` has a fresh child. A child that dies between two questions takes them
with it too. It does not know why an answer failed to come, beyond the reason it gives, and it does not repeat
anything: that is the pool's business. A worker serves one caller at a time.

The child is spawned by the event loop's own thread, because the kernel ties "die with the parent" to the
thread that spawned it.
"""

import asyncio
import math
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import msgspec

from streamrl.config.schema.run import RewardModelConfig, RewardRule
from streamrl.config.schema.sandbox import SandboxConfig
from streamrl.errors import ComponentError, ConfigError, DataError
from streamrl.rewards.base import RewardItem
from streamrl.rewards.wire import Batch, ChildSettings, Ready, Verdicts
from streamrl.system.child_process import ending, start_child
from streamrl.system.frames import HEADER, body_length, pack
from streamrl.system.processes import end_session
from streamrl.types import Score, ScoreStatus

PROGRAM = "streamrl.rewards.child"
START_TIMEOUT_S = 60.0  # Python's start, the import of the user's module, the weights of a reward model
GRACE_S = 0.1  # an answer that is there already is taken, however late this process got round to reading it
REAP_TIMEOUT_S = 10.0  # from SIGKILL to the end of the process
NO_MODEL = RewardModelConfig()
USUAL_SANDBOX = SandboxConfig()


class WorkerLostError(ComponentError):
    """The child did not answer and is gone. `reason` goes into the score of the item at fault."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Worker:
    """A place for one child process. It is empty until the first `start` or `ask`, and after a loss."""

    def __init__(
        self,
        rule: RewardRule,
        *,
        timeout_s: float,
        memory_bytes: int,
        import_paths: Sequence[str] = (),
        model: RewardModelConfig = NO_MODEL,
        sandbox: SandboxConfig = USUAL_SANDBOX,
        stacks: str = "",
    ) -> None:
        self._rule = rule
        self._stacks = stacks
        self._model = model
        self._sandbox = sandbox
        self._timeout_s = timeout_s
        self._memory_bytes = memory_bytes
        self._import_paths = list(import_paths)
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._end: int | None = None  # a descriptor that is readable from the child's death on
        self._asked = False
        self._sequence = 0
        self._verdicts = msgspec.msgpack.Decoder(Verdicts)

    @property
    def pid(self) -> int | None:
        """The child's process id; None while there is none that could answer."""
        return None if self._process is None or self._channel is None else self._process.pid

    async def start(self) -> None:
        """Have a child that is ready to score. Raises ConfigError for a function that cannot be had, and
        ComponentError for a child that does not come up."""
        await self.stop()
        self._spawn()
        try:
            ready = msgspec.msgpack.decode(await self._answer(b"", START_TIMEOUT_S), type=Ready)
        except WorkerLostError as lost:
            raise ComponentError(
                f"reward worker for {self._rule.name!r} did not start: {lost.reason}; it has "
                f"{self._memory_bytes} bytes of address space (reward.memory_bytes)"
            ) from lost
        if ready.error:
            await self.stop()
            raise ConfigError(ready.error)

    async def ask(self, items: Sequence[RewardItem]) -> list[Score]:
        """The scores of `items`, in order. Raises WorkerLostError when the child dies or passes the
        time-out."""
        if self.pid is None:
            await self.start()
        self._sequence += 1
        request = pack(Batch(self._sequence, list(items)))
        try:
            verdicts = self._verdicts.decode(await self._answer(request, self._timeout_s))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            await self.stop()
            raise WorkerLostError(f"child sent a malformed answer: {error}") from error
        if verdicts.sequence != self._sequence or len(verdicts.scores) != len(items):
            await self.stop()
            raise WorkerLostError("child answered another question")
        return [_checked(score) for score in verdicts.scores]

    def kill(self) -> None:
        """Send SIGKILL to the child and to all that it started. The child is reaped by `stop`."""
        self._unwatch()
        if self._process is not None and self._process.returncode is None:
            # Its number is its own until it is reaped, so this can hit no stranger.
            end_session(self._process.pid)

    async def stop(self) -> str:
        """Kill and reap the child, if any, and say how it ended. When this is cancelled, the next call reaps."""
        self.kill()
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        process = self._process
        if process is None:
            return "was not running"
        try:
            code = await asyncio.to_thread(process.wait, REAP_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise ComponentError(
                f"reward worker: process {process.pid} is alive {REAP_TIMEOUT_S:.0f} s after SIGKILL"
            ) from error
        self._process = None
        return ending(code)

    def _spawn(self) -> None:
        settings = partial(
            ChildSettings,
            parent=os.getpid(),
            rule=self._rule,
            memory_bytes=self._memory_bytes,
            import_paths=self._import_paths,
            model=self._model,
            sandbox=self._sandbox,
            stacks=self._stacks,
        )
        what = f"reward worker for {self._rule.name!r}"
        self._process, self._channel = start_child(PROGRAM, what, lambda channel: settings(channel=channel))
        self._watch(self._process.pid)

    def _watch(self, pid: int) -> None:
        """Hear of the child's death, where the system tells of it."""
        if sys.platform == "linux":
            self._end = os.pidfd_open(pid)
            asyncio.get_running_loop().add_reader(self._end, self._ended)

    def _ended(self) -> None:
        """The child is dead: end what it left. Between two questions the place is empty then, and the next item
        is not blamed."""
        self.kill()
        if not self._asked and self._channel is not None:
            self._channel.close()
            self._channel = None

    def _unwatch(self) -> None:
        if self._end is not None:
            asyncio.get_running_loop().remove_reader(self._end)
            os.close(self._end)
            self._end = None

    async def _answer(self, request: bytes, timeout_s: float) -> bytearray:
        """Send `request` and return the body of the next frame; on any trouble stop the child and raise."""
        exchange = asyncio.ensure_future(self._exchange(request))
        self._asked = True
        try:
            done, _ = await asyncio.wait({exchange}, timeout=timeout_s)
            if not done:
                done, _ = await asyncio.wait({exchange}, timeout=GRACE_S)
        finally:
            self._asked = False
            if not exchange.done():
                # Out of step with the child from here on: it must not answer the next caller.
                exchange.cancel()
                self.kill()
                with suppress(asyncio.CancelledError):
                    await exchange
                await self.stop()
        if not done:
            raise WorkerLostError(f"timeout: no answer in {timeout_s:g} s")
        try:
            return exchange.result()
        except (EOFError, OSError):
            raise WorkerLostError(f"child {await self.stop()}") from None
        except DataError as error:
            await self.stop()
            raise WorkerLostError(f"child sent a malformed answer: {error}") from error

    async def _exchange(self, request: bytes) -> bytearray:
        loop, channel = asyncio.get_running_loop(), self._channel
        assert channel is not None
        if request:
            await loop.sock_sendall(channel, request)
        header = await _receive(loop, channel, HEADER.size)
        return await _receive(loop, channel, body_length(bytes(header)))


async def _receive(loop: asyncio.AbstractEventLoop, channel: socket.socket, count: int) -> bytearray:
    data = bytearray(count)
    view, filled = memoryview(data), 0
    while filled < count:
        received = await loop.sock_recv_into(channel, view[filled:])
        if not received:
            raise EOFError("the child closed the channel")
        filled += received
    return data


def _checked(score: Score) -> Score:
    """A child is user code: its word is taken only where it has the shape of a score."""
    if score.status is ScoreStatus.OK and (score.reward is None or not math.isfinite(score.reward)):
        return Score.failed(f"child sent {score.reward} as a reward")
    return score
