"""Real servers for tests, in a session of their own, and ended with all that they started."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streamrl.config.model_facts import read_folder
from streamrl.engines.server.http import Http
from streamrl.engines.server.private_folder import make_private_folder
from streamrl.engines.server.process import ServerProcess
from streamrl.engines.server.sglang_command import kv_tokens, sglang_command
from streamrl.engines.server.sglang_contract import SglangContract

ROOT = Path(__file__).parents[1]
SGLANG_PYTHON = ROOT / ".venvs/sglang/bin/python"

_START_S = 400.0
_LOOK_S = 0.5


@contextmanager
def sglang_server(model_folder: Path, *, slots: int, context: int) -> Iterator[Path]:
    """The socket of a server of the model in float32, which takes requests."""
    facts, _ = read_folder(model_folder)
    assert facts is not None
    folder = make_private_folder("streamrl-test-sglang")
    socket = folder / "socket"
    command = sglang_command(
        SGLANG_PYTHON,
        model_folder,
        socket,
        dtype="float32",
        device="cpu",
        slots=slots,
        context_length=context,
        kv_tokens=kv_tokens(facts, "float32", 2**24),
        threads=1,
        further=["--watchdog-timeout", "600"],
    )
    process = ServerProcess("sglang", command, [folder])
    try:
        asyncio.run(_until_ready(socket, process))
        yield socket
    finally:
        process.stop()


async def _until_ready(socket: Path, process: ServerProcess) -> None:
    contract = SglangContract(Http(socket=socket))
    ended = asyncio.create_task(process.ended())
    try:
        async with asyncio.timeout(_START_S):
            while not await contract.ready():
                assert not ended.done(), process.story()
                await asyncio.sleep(_LOOK_S)  # another program, which gives us no event
    finally:
        ended.cancel()
        await asyncio.gather(ended, return_exceptions=True)
        await contract.close()
