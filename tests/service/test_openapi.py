"""What `/openapi.json` says holds: requests made from it, good and bad ones, against the real gateway.

`FAULT_SCALE=1` makes 500 of each kind for each route; the default is a short form of it. `SEED` replays.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from support.faults.fault_scale import SEED, scaled
from support.gateway.local_gateway import LocalGateway, local_gateway

from streamrl.config.schema.run import GatewayConfig
from streamrl.gateway.refusal import CODES
from streamrl.services.gateway.guard import Patience

FULL = 500
COUNT = max(5, scaled(FULL))
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
LIMIT_S = 60
ENDLESS = {"/api/events"}
"""Whose answers have no end to wait for; the page's tests read them."""
OURS = {
    "model": "run",
    "prompt": "1+1=",
    "messages": [{"role": "user", "content": "1"}],
    "stream": True,
    "key": "k0",
    "keys": ["k0"],
}


@schemathesis.serializer("application/x-ndjson")
def as_line(_: Any, value: Any) -> bytes:
    return json.dumps(value).encode() + b"\n"


@pytest.mark.timeout(300 + COUNT)
async def test_every_route_answers_as_its_description_says(tmp_path: Path) -> None:
    print(f"SEED={SEED} COUNT={COUNT}")
    gateway = GatewayConfig(enabled=True, stream_weights={"train": 0.0})
    patience = Patience(body_s=5.0, idle_s=0.2, hold_s=0.05)
    async with local_gateway(tmp_path, most=6, gateway=gateway, trains=True, owned=True, patience=patience) as local:
        seen = await asyncio.to_thread(conforms, local)
        assert (await local.complete(max_tokens=4))[0] == 200
        assert [work for work in local.works if work.done()] == []
    assert set().union(*seen.values()) >= {200, 400}, seen
    if COUNT < FULL:
        return  # A few drawn for each route do not come upon both kinds of answer at each; all of them together do.
    for path in ("/v1/completions", "/v1/chat/completions", "/api/prompts", "/api/prompts/cancel"):
        assert seen[path] >= {200, 400}, (path, seen[path])


def conforms(local: LocalGateway) -> dict[str, set[int]]:
    """Ask every route of the description. Returns the statuses that each answered with."""
    schema = schemathesis.openapi.from_url(f"{local.url}/openapi.json")
    seen: dict[str, set[int]] = {}
    for operation in (one.ok() for one in schema.get_all_operations() if one.ok().path not in ENDLESS):
        statuses = seen.setdefault(operation.path, set())
        for mode in GenerationMode if operation.body else (GenerationMode.POSITIVE,):
            _asked(local, operation.as_strategy(generation_mode=mode), statuses)
    return seen


def _asked(local: LocalGateway, cases: Any, statuses: set[int]) -> None:
    headers = {"authorization": f"Bearer {local.token()}"}

    @seed(SEED)
    @settings(max_examples=COUNT, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=cases, ours=st.booleans(), key=st.integers(0, 3))
    def ask(case: Any, ours: bool, key: int) -> None:
        known(case.body, ours, key)
        response = case.call(headers=headers, timeout=LIMIT_S)
        case.validate_response(response, checks=CHECKS)
        statuses.add(response.status_code)
        if response.status_code >= 400:
            assert response.json()["error"]["code"] in CODES[response.status_code]

    ask()


def known(body: Any, ours: bool, key: int) -> None:
    """Often what is here, and nothing else; and only few keys: what is made of a description alone is refused for its
    model's name, and a prompt that nobody trains on waits for ever."""
    if not isinstance(body, dict):
        return
    if isinstance(body.get("key"), str) and body["key"]:
        body["key"] = f"k{key}"
    if ours:
        here = {name: OURS[name] for name in OURS if name in body}
        body.clear()
        body.update(here)
