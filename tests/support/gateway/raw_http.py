"""HTTP as bytes: a request is written as it is, and what comes back is read as answers."""

import asyncio
import http.client
import io
from dataclasses import dataclass


@dataclass(frozen=True)
class Answer:
    """One answer. whole: it came to its end."""

    status: int
    content_type: str
    body: bytes
    whole: bool


async def exchange(port: int, raw: bytes, *, leaves: bool = False, enough: int = 0, endless: bool = False) -> bytes:
    """What comes back for some bytes until the server closes. leaves: nothing is waited for. enough: as many lines of
    prompts answered as shall be waited for, and no longer; 0 for the end. endless: the same of the head of events."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = bytearray()
    try:
        writer.write(raw)
        if leaves:
            await writer.drain()
        while not leaves and (piece := await reader.read(2**16)):
            data += piece
            if (enough and taken_lines(data) >= enough) or (endless and begins_events(data)):
                break
    except ConnectionError:
        pass  # a server may close while more is sent; what came before it counts
    finally:
        writer.transport.abort()
    return bytes(data)


def taken_lines(data: bytes) -> int:
    """Lines of prompts that were accepted or refused so far."""
    return data.count(b'{"type":"accepted"') + data.count(b'{"type":"error","line"')


def begins_events(data: bytes) -> bool:
    """Whether events come from now on."""
    return b"\r\ncontent-type: text/event-stream" in data.lower() and b"\r\n\r\n" in data


def answers(data: bytes) -> list[Answer]:
    """The answers that some bytes are, one behind the other; of those to HEAD, which have no body, the first. Raises
    HTTPException for what is none."""
    source, found = _Source(data), []
    while source.tell() < len(data):
        response = http.client.HTTPResponse(source)  # type: ignore[arg-type]
        response.begin()
        try:
            body, whole = response.read(), True
        except http.client.IncompleteRead as error:
            body, whole = error.partial, False
        found.append(Answer(response.status, response.headers.get_content_type(), body, whole))
    return found


class _Source(io.BytesIO):
    """In the place of a socket; what one answer leaves is the next one's."""

    def makefile(self, *_: object) -> "_Source":
        return self

    def close(self) -> None:
        pass
