"""Every route: without a token, with a wrong one, with too small a scope; with another Host, another Origin."""

from pathlib import Path

from support.gateway.local_gateway import local_gateway, until

from streamrl.config.schema.run import GatewayConfig
from streamrl.gateway.auth import Scope, all_scopes_token
from streamrl.gateway.page.files import PAGE, PAGE_FILES
from streamrl.gateway.routes import ROUTES

POSTED = (
    *("/v1/completions", "/v1/chat/completions", "/api/prompts", "/api/prompts/cancel"),
    *("/api/trajectories", "/api/sessions", "/api/sessions/{session_id}/reward"),
    *("/inference/v1/generate", "/tokenize", "/detokenize"),
    *("/v1/responses", "/v1/messages", "/v1/messages/count_tokens"),
)
ASKED = {"/v1/models/{name}": "/v1/models/run"}
"""Of a route with a name in it, one that is there."""
METHODS = {**{path: ["POST"] for path in POSTED}, "/api/scale": ["GET", "POST"]}
"""Of routes that are not asked with GET alone."""
TAKES_NONE = {"/api/prompts", "/api/sessions"}
"""Those that an empty body is no fault of."""
NOT_DOCUMENTED = {"/openapi.json", "/docs", PAGE, *PAGE_FILES}
CALLS = [(path, method) for path in ROUTES for method in METHODS.get(path, ["GET"])]


async def test_the_table_of_scopes_has_every_route_of_the_application_and_no_other(tmp_path: Path) -> None:
    async with local_gateway(tmp_path) as gateway:
        spec = (await gateway.ask("/openapi.json", headers={}))[1]
        app = gateway.actor._server.config.app._app
    assert {route.path for route in app.routes} == set(ROUTES)
    documented = [(path, method.upper()) for path, methods in spec["paths"].items() for method in methods]
    assert sorted(documented) == sorted(call for call in CALLS if call[0] not in NOT_DOCUMENTED)


async def test_every_route_wants_its_scope(tmp_path: Path) -> None:
    seen = {}
    settings = GatewayConfig(enabled=True, stream_weights={"train": 0.0})
    async with local_gateway(tmp_path, gateway=settings, trains=True, owned=True) as gateway:
        for path, method in CALLS:
            tokens = {
                "none": None,
                "wrong": "srl-wrong",
                "of another run": all_scopes_token(b"x" * 32),
                "for all": gateway.token(),
                **{scope.value: gateway.token(scope) for scope in Scope},
            }
            for name, token in tokens.items():
                headers = {} if token is None else {"authorization": f"Bearer {token}"}
                body = b"{}" if method == "POST" else None
                status, _ = await gateway.ask(ASKED.get(path, path), body, headers=headers, method=method)
                seen[path, method, name] = (status, expected_status(path, method, name))
    assert {key: got for key, (got, wanted) in seen.items() if got != wanted} == {}
    assert len(seen) == 7 * len(CALLS)


def expected_status(path: str, method: str, token: str) -> int:
    # An empty body lacks what it must say.
    good = 400 if method == "POST" and path not in TAKES_NONE else 200
    needed = ROUTES[path]
    if needed is None or token in ("for all", needed):
        return good
    return 403 if token in set(Scope) else 401


async def test_a_route_that_is_none_is_told_to_whoever_may_use_its_neighbours_alone(tmp_path: Path) -> None:
    async with local_gateway(tmp_path) as gateway:
        unknown = {"/v1/embeddings": Scope.GENERATE, "/api/x": Scope.CONTROL, "/page/x.js": Scope.CONTROL}
        for path, needed in unknown.items():
            assert (await gateway.ask(path, headers={}))[0] == 401
            for scope in Scope:
                headers = {"authorization": f"Bearer {gateway.token(scope)}"}
                status, answer = await gateway.ask(path, headers=headers)
                assert (status, answer["error"]["code"]) == (
                    (404, "not_found") if scope is needed else (403, "insufficient_scope")
                )
        status, answer = await gateway.ask("/v1/completions", method="GET")
        assert (status, answer["error"]["code"]) == (405, "method_not_allowed")


async def test_head_is_answered_as_get_without_a_body(tmp_path: Path) -> None:
    settings = GatewayConfig(enabled=True, stream_weights={"train": 0.0})
    async with local_gateway(tmp_path, gateway=settings, trains=True, owned=True) as gateway:
        headers, guard = {"authorization": f"Bearer {gateway.token()}"}, gateway.actor._server.config.app
        for path in (ASKED.get(path, path) for path, method in CALLS if method == "GET"):
            async with gateway.http.head(gateway.url + path, headers=headers) as head:
                assert (head.status, await head.read()) == (200, b""), path
            # What would have gone on ends, and only then its place is another's (`/api/weights` has one).
            await until(lambda: guard._running == 0)
            async with gateway.http.get(gateway.url + path, headers=headers) as whole:
                assert (whole.status, whole.content_type) == (200, head.content_type), path
                told = "content-length" in head.headers
                assert told == ("content-length" in whole.headers), path
            await until(lambda: guard._running == 0)
        for path, status in (("/v1/completions", 405), ("/v1/x", 404)):
            async with gateway.http.head(gateway.url + path, headers=headers) as head:
                assert (head.status, await head.read()) == (status, b"")
        async with gateway.http.head(f"{gateway.url}/api/status") as head:
            assert head.status == 401


async def test_a_method_that_a_route_has_not_is_told_those_that_it_has(tmp_path: Path) -> None:
    async with local_gateway(tmp_path) as gateway:
        headers = {"authorization": f"Bearer {gateway.token()}"}
        for path in ROUTES:
            methods = METHODS.get(path, ["GET"])
            expected = sorted({*methods, "HEAD"} if "GET" in methods else methods)
            for method in ("DELETE", "OPTIONS", "PROPFIND"):
                asked = gateway.url + ASKED.get(path, path)
                async with gateway.http.request(method, asked, headers=headers) as response:
                    answer = await response.json()
                    assert (response.status, answer["error"]["code"]) == (405, "method_not_allowed"), path
                    assert response.headers["allow"].split(", ") == expected, path
                    assert (answer.get("type") == "error") == path.startswith("/v1/messages")
                    assert all(name in answer["error"]["message"] for name in (method, *expected))


async def test_every_route_asks_for_host_and_origin(tmp_path: Path) -> None:
    async with local_gateway(tmp_path) as gateway:
        token = {"authorization": f"Bearer {gateway.token()}"}
        for path, method in CALLS:
            for headers, code in (
                ({"host": "evil.example"}, "bad_host"),
                ({"origin": "http://evil.example"}, "bad_origin"),
            ):
                status, answer = await gateway.ask(path, headers={**token, **headers}, method=method)
                assert (status, answer["error"]["code"]) == (403, code), path


async def test_status_and_metrics_say_what_the_run_says(tmp_path: Path) -> None:
    async with local_gateway(tmp_path) as gateway:
        await gateway.complete(max_tokens=4, n=2)
        assert await gateway.ask("/api/status") == (200, {"steps": 3})
        _, text = await gateway.ask("/metrics")
        status, page = await gateway.ask("/docs", headers={})
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert lines['streamrl_gateway_requests_total{route="/v1/completions",status="200"}'] == "1.0"
    assert 2 <= float(lines["streamrl_gateway_tokens_total"]) <= 8
    assert lines["streamrl_gateway_completions_running"] == "0.0"
    assert status == 200
    assert all(path in page for path in METHODS)
    assert "<script" not in page
