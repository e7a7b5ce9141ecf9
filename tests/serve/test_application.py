"""A run's application in Ray Serve, on a Ray of the run's own: its clients, its limits, its end."""

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.ingress.serve_run import OPTIONS, ServedRun, served_run
from support.runs.live_run import STREAMRL, prepare

from streamrl.gateway.auth import Scope

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serve")
    prepare(folder)
    return folder


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[ServedRun]:
    with served_run(folder, "served", *OPTIONS, "--gateway.insecure_bind", "true", replicas=2) as run:
        yield run


REFUSED: list[tuple[str, str, dict[str, str], bytes | None]] = [
    ("GET", "/v1/models", {"authorization": ""}, None),
    ("GET", "/v1/models", {"authorization": "Bearer wrong"}, None),
    ("GET", "/v1/models", {"host": "elsewhere.example"}, None),
    ("GET", "/v1/models", {"origin": "https://elsewhere.example"}, None),
    ("GET", "/v1/models/other", {}, None),
    ("GET", "/nothing", {}, None),
    ("DELETE", "/v1/models", {}, None),
    ("POST", "/v1/completions", {}, b"{"),
    ("POST", "/v1/completions", {}, b'{"model":"served"}'),
    ("POST", "/v1/completions", {}, b"[" * 3000),
    ("POST", "/v1/completions", {}, b" " * 5000),
    ("POST", "/v1/completions", {}, b'{"model":"served","prompt":"1","n":65}'),
    ("POST", "/v1/completions", {"x-session-id": "a b"}, b'{"model":"served","prompt":"1"}'),
    ("POST", "/v1/responses", {}, b'{"model":"served","input":"1","previous_response_id":"resp-none"}'),
    ("POST", "/api/sessions/none/reward", {}, b'{"reward":1}'),
    ("POST", "/api/scale", {}, b'{"learner":2}'),
    ("GET", "/api/samples?limit=0", {}, None),
]


def answer(url: str, token: str, method: str, path: str, headers: dict[str, str], body: bytes | None) -> Any:
    """(status, JSON), the run's token in place unless `headers` say otherwise."""
    given = {"content-type": "application/json", "authorization": f"Bearer {token}", **headers}
    request = urllib.request.Request(url + path, data=body, headers=given, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_whoever_is_refused_by_the_runs_own_server_is_refused_in_the_same_words(served: ServedRun) -> None:
    own, told = [
        [answer(url, served.token(), *asked) for asked in REFUSED] for url in (served.own_url, served.serve_url)
    ]
    assert told == own
    assert {status for status, _ in own} == {400, 401, 403, 404, 405, 409, 413} - {409}


@pytest.mark.parametrize("scope", list(Scope))
def test_a_token_opens_the_same_routes(served: ServedRun, scope: Scope) -> None:
    asked = [("GET", path, {}, None) for path in ("/v1/models", "/api/scale", "/metrics2")]
    asked.append(("POST", "/api/sessions", {}, b"{}"))
    own, told = [
        [answer(url, served.token(scope), *one)[0] for one in asked] for url in (served.own_url, served.serve_url)
    ]
    assert told == own
    assert 403 in own


def test_the_calls_of_a_session_are_one_whichever_replica_they_come_to(served: ServedRun) -> None:
    prompt = [1, 2, 3]
    for _ in range(6):  # with two replicas all of one with a chance of one in 32
        prompt = [*prompt, *served.complete("agent", prompt), 5]
    status, told = served.ask("/api/sessions/agent/reward", {"reward": 1.0, "group": "agent"})
    assert (status, told["turns"], told["branches"]) == (200, 6, 1)
    again = served.ask("/api/sessions/agent/reward", {"reward": 0.0, "group": "agent"})
    assert (again[0], again[1]["error"]["code"]) == (409, "already_rewarded")


def test_a_completion_is_streamed_and_equal_to_that_of_the_own_server(served: ServedRun) -> None:
    body = {"model": "served", "prompt": "1+1=", "max_tokens": 8, "seed": 3}
    own, told = [served.ask("/v1/completions", body, url=url)[1] for url in (served.own_url, served.serve_url)]
    assert told["choices"] == own["choices"]
    tokens, ended = served.stream({**body, "stream": True})
    assert (tokens, ended) == (own["choices"][0]["streamrl"]["token_ids"], True)


def test_the_status_names_the_application(served: ServedRun) -> None:
    _, told = served.ask("/api/status")
    wanted = {"application": "served", "url": served.serve_url, "replicas": 2, "max_replicas": 2}
    assert told["gateway"]["serve"] == wanted
    assert served.ask("/readyz")[0] == 200


def test_a_replica_that_is_killed_is_replaced_by_serve(served: ServedRun) -> None:
    before = served.replicas()
    before[0].kill()
    psutil.wait_procs(before[:1], timeout=30)
    served.until(lambda: len(served.replicas()) == 2 and served.ask("/readyz")[0] == 200)
    assert served.complete(None, [1, 2, 3])


def test_it_ends_with_the_run(folder: Path, served: ServedRun) -> None:
    left = served.serve_processes()
    assert len(left) >= 4
    subprocess.run([STREAMRL, "down", "served"], cwd=folder, check=True, timeout=120)
    assert psutil.wait_procs(left, timeout=60)[1] == []
