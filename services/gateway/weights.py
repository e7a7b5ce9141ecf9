"""A published version, sent to a client as a safetensors file: straight from shared memory, piece by piece.

Guarantees: what is sent has the digests of the version's signed manifest, and a file that has not ends without its last
bytes; no more than a piece is held here, and the next is read when the client has taken this one. The version stays as
it is while it is read: it is pinned until its file is mapped, and from then on the mapping keeps its memory, so that no
learner waits for a slow client. One client reads at a time: what it keeps in memory is one version at most.
"""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ray
import structlog
import xxhash
from ray.actor import ActorHandle
from starlette.responses import Response

from streamrl.errors import DataError
from streamrl.gateway.refusal import Refusal, invalid
from streamrl.services.actors.deaths import cause_of
from streamrl.services.gateway.answering import ClientGone, unless_gone
from streamrl.services.gateway.guard import Receive, Scope, Send
from streamrl.services.run.folder import RunFolder
from streamrl.types import Version
from streamrl.weights.folder import mapped
from streamrl.weights.manifest import WeightManifest, decode, verify
from streamrl.weights.safetensors_form import header_of, in_order

HOLDER = "gateway"
"""Who pins a version that is about to be sent."""
PIECE_BYTES = 4 * 2**20


class WeightsService:
    """See the module. store: the run's weight store.

    Example:
        stream = await service.open("")        # a response; "0.7" for that version
    """

    def __init__(self, run: RunFolder, store: ActorHandle) -> None:
        self._run = run
        self._store = store
        self._reading = False

    def begin(self) -> None:
        """Let go of what a gateway before this one had pinned when it died."""
        self._store.leave.remote(HOLDER)

    async def open(self, name: str) -> "WeightsStream":
        """name: of a version that somebody still needs; "" for the newest. Raises Refusal."""
        if self._reading:
            what = "another client reads weights, and one does at a time; try again when it has them"
            raise Refusal(429, "too_many_requests", what)
        self._reading = True
        opened = ExitStack()
        opened.callback(self._ended)
        try:
            manifest, content = await self._mapped(name, opened)
        except BaseException:
            opened.close()
            raise
        return WeightsStream(manifest, content, opened.close)

    def _ended(self) -> None:
        self._reading = False

    async def _mapped(self, name: str, opened: ExitStack) -> tuple[WeightManifest, memoryview]:
        """The version with all of its bytes, which stay until `opened` is closed."""
        manifest = await self._pinned(name)
        try:
            verify(manifest, self._run.key(), self._run.run_id)
            return manifest, opened.enter_context(mapped(Path(manifest.location), manifest))
        except FileNotFoundError as error:
            raise Refusal(503, "run_not_ready", f"{manifest.version} was taken back; ask for the newest") from error
        finally:
            self._store.unpin.remote(manifest.version, HOLDER)

    async def _pinned(self, name: str) -> WeightManifest:
        """The version of a name, "" for the newest, kept until it is given back."""
        store = self._store
        try:
            call: Any = store.pin.remote(version_of(name), HOLDER) if name else store.pin_newest.remote(HOLDER)
            encoded = await call
            if encoded is None:
                raise Refusal(503, "run_not_ready", "no version is published yet; ask again soon")
            return decode(encoded)
        except (ray.exceptions.RayError, DataError) as error:
            cause = cause_of(error)
            if isinstance(cause, DataError):
                raise Refusal(404, "unknown_version", str(cause), "query.version") from error
            raise Refusal(503, "run_not_ready", "the weight store is started again; ask again soon") from error


class WeightsStream(Response):
    """See the module. close: called once, when nothing is sent any more."""

    media_type = "application/octet-stream"

    def __init__(self, manifest: WeightManifest, content: memoryview, close: Callable[[], None]) -> None:
        self._header = header_of(manifest)
        total = len(self._header) + sum(entry.nbytes for entry in manifest.tensors)
        name = f'attachment; filename="{manifest.version}.safetensors"'
        super().__init__(headers={"cache-control": "no-cache", "content-disposition": name})
        self.headers["content-length"] = str(total)
        self._manifest = manifest
        self._content = content
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(receive, self._send(send))
        except ClientGone:
            return
        except DataError as error:
            # There is no other way to tell: the status is sent. What comes is shorter than was announced.
            structlog.get_logger().error("weights are not sent to their end", error=str(error))
        finally:
            del self._content
            self._close()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self._header, "more_body": True})
        for entry in in_order(self._manifest):
            hasher = xxhash.xxh3_64()
            end = entry.offset + entry.nbytes
            for start in range(entry.offset, end, PIECE_BYTES):
                piece = await asyncio.to_thread(self._piece, start, min(start + PIECE_BYTES, end), hasher)
                if start + PIECE_BYTES >= end and hasher.hexdigest() != entry.digest:
                    raise DataError(f"version {self._manifest.version}: tensor {entry.name!r} is damaged in memory")
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    def _piece(self, start: int, end: int, hasher: Any) -> bytes:
        piece = bytes(self._content[start:end])
        hasher.update(piece)
        return piece


def version_of(name: str) -> Version:
    """Of its name. Raises Refusal."""
    incarnation, _, step = name.partition(".")
    if not all(part.isascii() and part.isdecimal() and len(part) < 18 for part in (incarnation, step)):
        raise invalid("invalid_value", f"{name[:40]!a} is no version: they are named as 0.7", "query.version")
    return Version(int(incarnation), int(step))
