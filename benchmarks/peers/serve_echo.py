"""A bare Ray Serve application that streams given pieces, one each 50 ms: what streaming over Serve costs at least.

Runs in an environment of its own (`.venvs/serve`), so it imports nothing of streamrl. Prints the port when it answers,
and ends with its standard input.

    python serve_echo.py PIECES.json
"""

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import StreamingResponse

PAUSE_S = 0.05


@serve.deployment(max_ongoing_requests=10_000, ray_actor_options={"num_cpus": 0})
class Echo:
    def __init__(self, pieces: list[str]) -> None:
        self._pieces = pieces

    async def __call__(self, request: Request) -> StreamingResponse:
        await request.body()
        return StreamingResponse(self._stream(), media_type="text/event-stream")

    async def _stream(self) -> AsyncIterator[str]:
        for piece in self._pieces:
            await asyncio.sleep(PAUSE_S)
            yield piece


def main() -> None:
    pieces = json.loads(Path(sys.argv[1]).read_text())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(Echo.bind(pieces))
    print(port, flush=True)
    sys.stdin.read()
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
