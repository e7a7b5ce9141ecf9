"""What an ingress and the run's own gateway tell each other. Plain data; messages are those of ASGI."""

from typing import Any

import msgspec


class Begin(msgspec.Struct, frozen=True):
    """A request to be answered. number: of it, unique in its ingress. body: all of it; None where it is still to be
    read."""

    number: int
    scope: dict[str, Any]
    body: bytes | None


class Received(msgspec.Struct, frozen=True):
    """What the client said next: the answer to one `Wants`."""

    number: int
    message: dict[str, Any]


class Taken(msgspec.Struct, frozen=True):
    """So many bytes of an answer have reached the client."""

    number: int
    num_bytes: int


class End(msgspec.Struct, frozen=True):
    """Nobody waits for this answer any more."""

    number: int


class Counted(msgspec.Struct, frozen=True):
    """The ingress answered a request, or gave tokens to its client; `route` is "" for tokens. count: the status, or how
    many tokens."""

    route: str
    count: int


Order = Begin | Received | Taken | End | Counted
"""Of an ingress."""


class Wants(msgspec.Struct, frozen=True):
    """The answer needs what the client says next."""

    number: int


class Sent(msgspec.Struct, frozen=True):
    """A piece of an answer."""

    number: int
    message: dict[str, Any]


class Ended(msgspec.Struct, frozen=True):
    """Nothing more comes of it. failed: not because it is whole."""

    number: int
    failed: bool


News = Wants | Sent | Ended
"""Of the run's own gateway."""


class IngressFacts(msgspec.Struct, frozen=True):
    """What an ingress needs to know of a run. key: the run's secret. created: Unix seconds. files: of the model's
    folder by name, without weights. longest_row: tokens of prompt and completion together. name: of the run."""

    key: bytes
    name: str
    created: int
    longest_row: int
    files: dict[str, bytes]
