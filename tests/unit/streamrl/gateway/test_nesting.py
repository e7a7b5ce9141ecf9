"""Bodies that are nested too deep are refused by every route, and what a text holds does not count."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from support.faults.fault_scale import SEED
from support.gateway.local_gateway import local_gateway
from support.gateway.request_bodies import BODIES

from streamrl.config.schema.run import GatewayConfig
from streamrl.gateway.nesting import MOST_NESTED, check_nesting
from streamrl.gateway.refusal import Refusal

REPEATED = ("metadata", "tools", "tool_choice", "text", "messages", "response_format", "payload", "prompt", "unknown")
"""Fields that some route reads, renders, keeps or sends back."""
HERE = "what is nested"
LETTERS = ['"', "\\", "[", "]", "{", "}", "a", "\n", "é", "∀", "\\u005b"]


def depth_of(value: Any) -> int:
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth_of, inner), default=0)


def text(chance: random.Random) -> str:
    return "".join(chance.choices(LETTERS, k=chance.randrange(40)))


def tree(chance: random.Random, depth: int) -> Any:
    made: Any = text(chance)
    for _ in range(depth):
        beside = [text(chance) for _ in range(chance.randrange(3))]
        made = [*beside, made] if chance.random() < 0.5 else {**{name: [] for name in beside}, text(chance): made}
    return made


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32"])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_the_depth_is_that_of_the_json_whatever_its_texts_hold(ascii_only: bool, encoding: str) -> None:
    print(f"SEED={SEED}")
    chance, seen = random.Random(SEED), set()
    for _ in range(300):
        value = tree(chance, chance.randrange(MOST_NESTED - 4, MOST_NESTED + 4))
        body = json.dumps(value, ensure_ascii=ascii_only).encode(encoding)
        deep = depth_of(value) > MOST_NESTED
        assert refused(body) == deep, body
        seen.add(deep)
    assert seen == {True, False}


def refused(body: bytes) -> bool:
    try:
        check_nesting(body)
    except Refusal as refusal:
        return refusal.code == "nested_too_deep"
    return False


def test_brackets_beside_one_another_and_across_pieces_are_counted_right() -> None:
    many = 2**18
    check_nesting(b"[" + b"[]," * many + b"[]]")
    check_nesting(b'["' + b"[" * 3 * many + b'"]')
    with pytest.raises(Refusal, match=f"are {many} deep"):
        check_nesting(b"[" * many)


def test_what_is_no_json_is_left_to_the_route() -> None:
    for body in (b"", b"\xff" * 300, b"]" * 300, b'"' + b"[" * 300, b"\x00[" * 100):
        check_nesting(body)


@pytest.mark.parametrize("path", BODIES)
async def test_a_route_refuses_what_is_nested_too_deep_and_breaks_over_nothing_less(path: str, tmp_path: Path) -> None:
    settings = GatewayConfig(enabled=True, stream_weights={"train": 0.0})
    async with local_gateway(tmp_path, most=6, gateway=settings, trains=True, owned=True) as gateway:
        for name in REPEATED:
            for depth in (MOST_NESTED - 2, MOST_NESTED, 961, 10**5):
                given = json.loads(BODIES[path](random.Random(SEED)).splitlines()[0])
                body = json.dumps({**given, name: HERE}).encode().replace(f'"{HERE}"'.encode(), deep(depth))
                status, answer = await gateway.ask(path, body)
                told = answer if isinstance(answer, str) else json.dumps(answer)
                assert status < 500, (name, depth, told)
                assert ('"nested_too_deep"' in told) == (depth >= MOST_NESTED), (name, depth, told)
        if path.startswith("/v1/messages"):
            assert (answer["type"], answer["error"]["type"]) == ("error", "invalid_request_error")
        elif path != "/api/prompts":
            assert set(answer["error"]) == {"message", "type", "param", "code"}
        assert (await gateway.complete(max_tokens=4))[0] == 200


def deep(depth: int) -> bytes:
    """JSON, also of more than Python writes."""
    return b'{"a":[' * (depth // 2) + b"1" + b"]}" * (depth // 2)
