"""A request as bytes for a socket, so that nothing between here and the server mends it."""

from dataclasses import dataclass, field

STALLS, LEAVES, WHOLE = "stalls", "leaves", "whole"
"""How a request ends: all of it is sent; some, and the client waits; some, and the client goes away."""


@dataclass
class Sent:
    """A request. raw: its bytes. lines: of prompts that are whole. ways: what was done to it, in words."""

    method: bytes
    target: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    end: str = WHOLE
    chunked: bool = False
    length: bytes | None = None
    version: bytes = b"HTTP/1.1"
    after: bytes = b""
    ways: list[str] = field(default_factory=list)

    @property
    def raw(self) -> bytes:
        framing = []
        if self.chunked:
            framing.append((b"transfer-encoding", b"chunked"))
        if self.length is not None or (self.body and not self.chunked):
            framing.append((b"content-length", self.length or b"%d" % len(self.body)))
        pairs = [*self.headers, *framing, (b"connection", b"close")]
        head = b"".join(name + b": " + value + b"\r\n" for name, value in pairs)
        return (
            b" ".join((self.method, self.target, self.version)) + b"\r\n" + head + b"\r\n" + self._framed() + self.after
        )

    @property
    def prompts(self) -> int:
        """Lines that a stream of prompts answers at once; 0 for everything else."""
        if self.target.partition(b"?")[0] != b"/api/prompts":
            return 0
        *whole, rest = self.body.split(b"\n")
        return sum(bool(line.strip()) for line in ([*whole, rest] if self.end == WHOLE else whole))

    @property
    def endless(self) -> bool:
        """Whether what is asked for has no end of its own."""
        return self.target.partition(b"?")[0] == b"/api/events"

    def _framed(self) -> bytes:
        if not self.chunked:
            return self.body
        half = len(self.body) // 2
        pieces = [piece for piece in (self.body[:half], self.body[half:]) if piece]
        framed = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
        return framed + (b"0\r\n\r\n" if self.end == WHOLE else b"")

    def __str__(self) -> str:
        shown = self.raw if len(self.raw) < 2000 else self.raw[:1500] + b" ... " + self.raw[-400:]
        return f"{', '.join(self.ways)} ({self.end})\n{shown!r}"


def honest_headers(token: bytes) -> list[tuple[bytes, bytes]]:
    """Of a request with a body."""
    named = [(b"host", b"127.0.0.1"), (b"authorization", b"Bearer " + token)]
    return [*named, (b"content-type", b"application/json")]
