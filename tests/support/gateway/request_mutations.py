"""Requests to a gateway that no honest client sends: good ones, with fields, bytes and headers changed.

`mutated` makes the same request of a seed and a number, whatever was made before. A request is bytes for a socket, so
that nothing between here and the server mends it.
"""

import json
import random
from collections.abc import Callable, Mapping
from typing import Any

from support.gateway.request_bodies import BODIES, RAW, text_of
from support.gateway.sent_request import LEAVES, STALLS, Sent, honest_headers

from streamrl.gateway.routes import ROUTES

MOST_BYTES = 2**17
"""Of a body, that the gateway under test takes."""

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 10**6, 2**31, 2**63, -(2**63), 10**30, 10**400, 0.5, -0.0, 1e-300, 1e308),
    *(
        "",
        " ",
        "\x00",
        "1",
        "run",
        "\ud800",
        "\udfff1",
        "\U0001f600",
        "\u202e1",
        "a\r\nb",
        "null",
        "../..",
        "1" * 39,
        "1" * 5000,
    ),
    *(
        [],
        {},
        [[]],
        [{}],
        [None],
        [1, "1"],
        ["1"] * 70,
        [1] * 3000,
        ["x", 1] * 500,
        {"": ""},
        {"\ud800": 1},
        {"a": [1]},
    ),
    *3 * [f"<<{name}>>" for name in RAW],
)
NAMES = (
    *("model", "prompt", "messages", "n", "temperature", "top_p", "top_k", "min_p", "max_tokens", "seed", "stop"),
    *(
        "stop_token_ids",
        "stream",
        "stream_options",
        "logprobs",
        "top_logprobs",
        "prompt_logprobs",
        "tools",
        "tool_choice",
        "echo",
        "best_of",
        "key",
        "keys",
    ),
    *(
        "logit_bias",
        "response_format",
        "metadata",
        "payload",
        "user",
        "",
        "\ud800",
        "__class__",
        "x" * 300,
        "role",
        "content",
    ),
)
CONTENT_TYPES = (
    *(
        b"",
        b"text/plain",
        b"application/xml",
        b"multipart/form-data; boundary=x",
        b"multipart/form-data",
        b"application/",
    ),
    *(
        b"application/x-www-form-urlencoded",
        b"application/json; charset=utf-16",
        b"application/vnd.x+json",
        b"json",
        b";",
    ),
    *(b"application/json;" * 50, b"\xff\xfe", b"application/octet-stream", b'application/json; charset="', b"*/*"),
)
METHODS = (
    b"GET",
    b"POST",
    b"PUT",
    b"DELETE",
    b"PATCH",
    b"HEAD",
    b"OPTIONS",
    b"TRACE",
    b"CONNECT",
    b"PROPFIND",
    b"get",
    b"X",
    b"",
)
TARGETS = (
    *(
        b"/v1/%00",
        b"/\x00",
        b"/v1/../api/status",
        b"/v1/%2e%2e/api/status",
        b"//v1/models",
        b"/v1//models",
        b"/v1/models/",
    ),
    *(b"/%ff%fe", b"/v1/completions%20", b"/v1/completions;x", b"/V1/MODELS", b"*", b"", b"http://127.0.0.1/v1/models"),
    *(
        b"http://evil.example/v1/models",
        b"/docs/../../etc/passwd",
        b"/" + b"a" * 9000,
        b"/\xc3\xa9",
        b"/%",
        b"/%zz",
        b"/?",
        b"?",
    ),
    *(
        b"/v1/models?" + b"a=1&" * 2000,
        b"/v1/models#x",
        b"/v1/models?x=%00",
        b"/openapi.json%00.txt",
        b"/api/prompts%0d%0aX: y",
    ),
)
STREAMS = (
    b"?stream=",
    b"?stream=a%20b",
    b"?stream=%00",
    b"?stream=..",
    b"?stream=%ED%A0%80",
    b"?stream=" + b"x" * 65,
    b"?x=1",
    b"?stream=fuzz",
)


def mutated(seed: int, number: int, tokens: Mapping[str, str]) -> Sent:
    """The request of that number. tokens: of the gateway, by what they are good for; `all` is for everything."""
    chance = random.Random(f"{seed}/{number}")
    sent = _good(chance, tokens["all"])
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        name = chance.choices(list(WAYS), [weight for weight, _ in WAYS.values()])[0]
        WAYS[name][1](sent, chance, tokens)
        sent.ways.append(name)
    return sent


def _good(chance: random.Random, token: str) -> Sent:
    """A request that is as it should be."""
    path = chance.choice([*ROUTES, *BODIES, *BODIES])
    body = BODIES[path](chance) if path in BODIES else b""
    headers = honest_headers(token.encode())
    return Sent(b"POST" if body else b"GET", path.encode(), headers if body else headers[:2], body)


def _field(sent: Sent, chance: random.Random, _: Mapping[str, str]) -> None:
    """One field is another, or too many, or none."""
    lines = sent.body.split(b"\n")
    place = chance.randrange(len(lines))
    try:
        tree = {"": json.loads(lines[place])}
    except (ValueError, RecursionError):
        return
    at, key = chance.choice(list(_places(tree)))
    way = chance.randrange(4)
    if way == 0 and at is not tree:
        del at[key]
    elif way == 1 and isinstance(at, dict) and at is not tree:
        at[chance.choice(NAMES)] = chance.choice((*ODD, at[key], 1, "1"))
    elif way == 2 and isinstance(at, list):
        at.extend([at[key]] * chance.choice((1, 70, 2000)))
    else:
        at[key] = chance.choice(ODD)
    lines[place] = text_of(tree[""])
    sent.body = b"\n".join(lines)


def _places(tree: Any, deep: int = 12) -> list[tuple[Any, Any]]:
    """(container, key) of everything in a tree, down to a depth: one that was made deep before has no end here."""
    if not deep:
        return []
    keys = list(tree) if isinstance(tree, dict) else list(range(len(tree))) if isinstance(tree, list) else []
    return [place for key in keys for place in ((tree, key), *_places(tree[key], deep - 1))]


def _bytes(sent: Sent, chance: random.Random, _: Mapping[str, str]) -> None:
    """Bytes of the body are others."""
    body = bytearray(sent.body or b"{}")
    for _ in range(chance.choice((1, 3, 20))):
        body[chance.randrange(len(body))] = chance.choice(
            (0, 10, 34, 92, 123, 125, 0xC3, 0xED, 0xFF, chance.randrange(256))
        )
    sent.body = bytes(body)


def _spelling(sent: Sent, chance: random.Random, _: Mapping[str, str]) -> None:
    """The same JSON otherwise, or no JSON."""
    body = sent.body or b"{}"
    sent.body = chance.choice(
        (
            b"\xef\xbb\xbf" + body,
            body.decode("latin-1").encode("utf-16"),
            body.decode("latin-1").encode("utf-32-le"),
            body[: chance.randrange(len(body))],
            body + body,
            body.replace(b"{", b'{"model":1,', 1),
            body.replace(b"}", b',"model":"run"}', 1),
            body.replace(b": ", b":" + b" " * 3000, 1),
            b"[" + body + b"]",
            json.dumps(body.decode("latin-1")).encode(),
            b"null",
            b"\n" * 500,
            b"{}\n" * 300,
            body + b"x" * MOST_BYTES,
            bytes(chance.randrange(256) for _ in range(chance.randrange(1, 400))),
        )
    )


def _content_type(sent: Sent, chance: random.Random, _: Mapping[str, str]) -> None:
    sent.headers = [pair for pair in sent.headers if pair[0] != b"content-type"]
    if chance.random() < 0.9:
        sent.headers.append((b"content-type", chance.choice(CONTENT_TYPES)))


def _framing(sent: Sent, chance: random.Random, _: Mapping[str, str]) -> None:
    """How long the body is, and whether all of it comes."""
    way = chance.randrange(6)
    if way == 0:
        sent.chunked = True
    elif way == 1:
        sent.chunked, sent.end = True, chance.choice((STALLS, LEAVES))
    elif way == 2:
        sent.length, sent.end = (
            b"%d" % (len(sent.body) + chance.choice((1, 100, MOST_BYTES))),
            chance.choice((STALLS, LEAVES)),
        )
    elif way == 3:
        odd = (b"-1", b"abc", b"1" * 30, b"9" * 5000, b"+5", b"0x10", b"1, 1", b"\xb2", b"", b"1e3")
        sent.length, sent.end = chance.choice(odd), STALLS
    elif way == 4:
        sent.length, sent.chunked = b"%d" % len(sent.body), True
    else:
        sent.headers.append((b"expect", chance.choice((b"100-continue", b"200-ok", b""))))


def _header(sent: Sent, chance: random.Random, tokens: Mapping[str, str]) -> None:
    """One header more, or another one, or one less."""
    way = chance.randrange(4)
    if way == 0:
        del sent.headers[chance.randrange(len(sent.headers))]
    elif way == 1:
        token = chance.choice(list(tokens.values())).encode()
        others = (
            b"Bearer " + token,
            b"bearer  " + token,
            b"Basic " + token,
            token,
            b"Bearer",
            b"Bearer \xff",
            b"Bearer " + token * 50,
        )
        sent.headers = [pair for pair in sent.headers if pair[0] != b"authorization"]
        sent.headers += [(b"authorization", chance.choice(others)) for _ in range(chance.choice((1, 1, 2)))]
    elif way == 2:
        hosts = (
            b"",
            b"evil.example",
            b"[",
            b"[::1]:80",
            b"a@b",
            b"localhost:99999",
            b"127.0.0.1:",
            b"\xff",
            b"127.0.0.1, x",
        )
        sent.headers[0] = (b"host", chance.choice(hosts))
    else:
        sent.headers += chance.choice(
            (
                [
                    (
                        b"origin",
                        chance.choice((b"null", b"http://evil.example", b"http://127.0.0.1", b"http://[", b"\xff")),
                    )
                ],
                [(b"upgrade", b"websocket"), (b"connection", b"upgrade"), (b"sec-websocket-key", b"x")],
                [(b"upgrade", b"h2c"), (b"http2-settings", b"AAAA")],
                [(b"x", b"y" * 20_000)],
                [(b"x%d" % number, b"y") for number in range(300)],
                [(b"x", b"a\r\n b")],
                [(b"x y", b"z")],
                [(b"", b"z")],
                [(b"x", b"\x00")],
                [(b"x-forwarded-for", b"1.2.3.4"), (b"x-forwarded-host", b"evil.example")],
                [(b"accept-encoding", b"gzip"), (b"content-encoding", b"gzip")],
                [(b"range", b"bytes=0-0"), (b"if-match", b"*")],
                [(b"content-length", b"3")],
            )
        )


def _method(sent: Sent, chance: random.Random, _: Mapping[str, str]) -> None:
    sent.method = chance.choice(METHODS)


def _target(sent: Sent, chance: random.Random, _: Mapping[str, str]) -> None:
    if sent.target == b"/api/prompts":
        sent.target += chance.choice(STREAMS)
    else:
        sent.target = chance.choice((*TARGETS, sent.target + b"?x=1", *(path.encode() for path in ROUTES)))


def _protocol(sent: Sent, chance: random.Random, _: Mapping[str, str]) -> None:
    """What is not quite HTTP/1.1, or more than one request."""
    if chance.random() < 0.5:
        sent.version = chance.choice(
            (b"HTTP/1.0", b"HTTP/0.9", b"HTTP/2.0", b"HTTP/9", b"", b"HTTP/1.1 x", b"RTSP/1.0")
        )
    else:
        sent.after = chance.choice(
            (b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n", b"\r\n\r\n", b"\x16\x03\x01\x02\x00", b"0\r\n\r\n")
        )


Way = Callable[[Sent, random.Random, Mapping[str, str]], None]
WAYS: Mapping[str, tuple[int, Way]] = {
    "a field": (12, _field),
    "bytes": (2, _bytes),
    "a spelling": (3, _spelling),
    "a content type": (1, _content_type),
    "framing": (1, _framing),
    "a header": (2, _header),
    "a method": (1, _method),
    "a target": (2, _target),
    "a protocol": (1, _protocol),
}
"""What is done to a request, and how often beside the others."""
