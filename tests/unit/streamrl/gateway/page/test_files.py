"""The page's files and its routes, over HTTP. What it does in a browser is in tests/browser."""

import re
from pathlib import Path
from typing import Any

import pytest
from support.gateway.local_gateway import LocalGateway, events, local_gateway
from support.runs.scripted_owner import ScriptedOwner

from streamrl.gateway.auth import Scope
from streamrl.gateway.page import files as page_files
from streamrl.gateway.page.files import PAGE, PAGE_FILES, PAGE_HEADERS, page_file
from streamrl.observability.failure import FailureReport, report_failure
from streamrl.observability.metrics import MetricsWriter
from streamrl.services.cli.main import run_app
from streamrl.services.run.folder import Launch
from streamrl.services.run.gateway_tokens import token_path
from streamrl.services.run.liveness import ProcessId

FOLDER = Path(page_files.__file__).with_name("static")


def write_steps(gateway: LocalGateway, *, steps: int, **figures: Any) -> None:
    with MetricsWriter(gateway.run.metrics_path) as metrics:
        for step in range(1, steps + 1):
            metrics.write({"step": step, "reward/mean": step / steps, "time/step": 0.5, "time/wait": 0.4, **figures})


def test_every_file_of_the_page_is_a_route_and_every_route_a_file() -> None:
    files = {path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.is_file()}
    assert files == {"index.html", *PAGE_FILES.values()}
    types = {route: page_file(route)[1].partition(";")[0] for route in (PAGE, *PAGE_FILES)}
    assert types[PAGE] == "text/html"
    assert set(types.values()) == {"text/html", "text/css", "text/javascript"}


def test_no_file_names_another_host_has_script_or_style_inside_or_makes_html_of_text() -> None:
    for route in (PAGE, *PAGE_FILES):
        text = page_file(route)[0].decode("ascii")
        assert not re.findall(r"https?://|(?:src|href)=[\"']//", text), route
        assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|Function\(", text), (
            route
        )
    index = page_file(PAGE)[0].decode()
    assert not re.findall(r"<style|\sstyle=|\son\w+=|javascript:", index)
    assert re.findall(r"<script[^>]*>", index) == ['<script type="module" src="page/main.js">']


def test_scripts_import_files_of_the_page_alone_and_none_is_left_out() -> None:
    imported = {"main.js"}
    for name in PAGE_FILES.values():
        file = FOLDER / name
        for path in re.findall(r'from "(\.[\w./]+)"', file.read_text()):
            imported.add((file.parent / path).resolve().relative_to(FOLDER).as_posix())
    assert imported | {"page.css"} == set(PAGE_FILES.values())


async def test_the_page_needs_no_token_and_may_load_nothing_from_elsewhere(tmp_path: Path) -> None:
    async with local_gateway(tmp_path) as gateway:
        for path in (PAGE, *PAGE_FILES):
            async with gateway.http.get(gateway.url + path) as response:
                assert response.status == 200
                assert await response.read() == page_file(path)[0]
                assert PAGE_HEADERS.items() <= {k.lower(): v for k, v in response.headers.items()}.items()
                assert response.headers["content-type"] == page_file(path)[1]
        for path in ("/page/", "/page/../auth.py", "/page/%2e%2e/auth.py", "/page/index.html", "/page/__init__.py"):
            assert (await gateway.ask(path))[0] == 404
        assert (await gateway.ask(PAGE, method="POST"))[0] == 405


async def test_the_history_is_told_in_as_many_points_as_are_asked_for(tmp_path: Path) -> None:
    async with local_gateway(tmp_path) as gateway:
        assert (await gateway.ask("/api/history"))[1]["rows"] == 0
        write_steps(gateway, steps=300)
        status, told = await gateway.ask("/api/history?points=50&figure=reward/mean&figure=none")
        assert (status, told["rows"], list(told["figures"])) == (200, 300, ["reward/mean"])
        reward = told["figures"]["reward/mean"]
        assert len(reward["step"]) == len(reward["value"]) <= 50
        assert (reward["step"][0], reward["step"][-1], told["clock"]["time_s"][-1]) == (1, 300, 150.0)
        _, told = await gateway.ask("/api/history")
        assert len(told["figures"]["time/wait"]["value"]) == 300


@pytest.mark.parametrize(
    "query", ["points=1", "points=10001", "points=x", "points=", "&".join(["figure=a"] * 300), "points=-5"]
)
async def test_a_history_that_cannot_be_is_refused(tmp_path: Path, query: str) -> None:
    async with local_gateway(tmp_path) as gateway:
        status, answer = await gateway.ask(f"/api/history?{query}")
    assert (status, answer["error"]["code"]) == (400, "invalid_value")
    assert answer["error"]["param"].startswith("query.")


async def test_a_damaged_line_of_the_history_is_skipped_and_told_with_the_findings(tmp_path: Path) -> None:
    async with local_gateway(tmp_path) as gateway:
        gateway.run.metrics_path.write_text('{"step": 1}\nnonsense\n{"step": 3}\n')
        status, answer = await gateway.ask("/api/history")
        assert (status, answer["rows"]) == (200, 2)
        headers = {"authorization": f"Bearer {gateway.token(Scope.CONTROL)}"}
        async with gateway.http.get(gateway.url + "/api/events", headers=headers) as response:
            (told,) = [one async for one in first(events(response))]
    assert "1 line of metrics is skipped, the first: " in told["why"][-1]
    assert "metrics.jsonl:2" in told["why"][-1]


async def test_events_say_how_the_run_stands_and_what_follows_from_it(tmp_path: Path) -> None:
    async with local_gateway(tmp_path) as gateway:
        write_steps(gateway, steps=30, **{"rollout/idle_share": 0.0})
        headers = {"authorization": f"Bearer {gateway.token(Scope.CONTROL)}"}
        async with gateway.http.get(gateway.url + "/api/events", headers=headers) as response:
            assert (response.status, response.content_type) == (200, "text/event-stream")
            (told,) = [one async for one in first(events(response))]
        assert told["kind"] == "status"
        assert told["steps"] == 3  # as the controller says
        assert (told["run"]["name"], told["run"]["max_staleness"]) == ("run", 2)
        assert told["waits"][1] == {"who": "learner", "what": "rows", "share": pytest.approx(0.8)}
        assert "generation is the slowest" in told["why"][0]


async def first(stream: Any) -> Any:
    yield await anext(stream)


async def test_events_are_those_of_the_owner(tmp_path: Path) -> None:
    owner = ScriptedOwner()
    owner.hub.publish({"kind": "phase", "name": "running"})
    async with local_gateway(tmp_path, story=owner) as gateway:
        headers = {"authorization": f"Bearer {gateway.token(Scope.CONTROL)}"}
        async with gateway.http.get(gateway.url + "/api/events", headers=headers) as response:
            stream = events(response)
            story = [await anext(stream), await anext(stream)]
            assert {one["kind"] for one in story} == {"phase", "status"}
            owner.hub.publish({"kind": "step", "step": 7})
            told = await anext(stream)
            while told["kind"] != "step":
                told = await anext(stream)
            assert told["step"] == 7


async def test_readers_do_not_keep_the_gateway_from_ending(tmp_path: Path) -> None:
    async with local_gateway(tmp_path) as gateway:
        token = {"authorization": f"Bearer {gateway.token()}"}
        response = await gateway.http.get(gateway.url + "/api/events", headers=token)
        assert [one["kind"] async for one in first(events(response))] == ["status"]
        assert gateway.actor._watch.feed.readers == 1
        await gateway.actor.close()
        assert (await response.content.read()).strip() == b"", "it ends, and is not cut"
        assert gateway.actor._watch.feed.readers == 0


async def test_why_the_run_fails_is_the_last_word_to_its_readers(tmp_path: Path) -> None:
    async with local_gateway(tmp_path) as gateway:
        token = {"authorization": f"Bearer {gateway.token()}"}
        response = await gateway.http.get(gateway.url + "/api/events", headers=token)
        stream = events(response)
        assert (await anext(stream))["kind"] == "status"
        report_failure(gateway.run.path, FailureReport.now("learner", "run", "loss is nan", "0.3"))
        await gateway.actor.close()
        (*_, last) = [one async for one in stream]
        assert (last["kind"], last["component"], last["cause"]) == ("failure", "learner", "loss is nan")


async def test_the_command_prints_a_link_with_the_token_that_controls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with local_gateway(tmp_path) as gateway:
        run, me = gateway.run, ProcessId.own()
        assert run_app(["page", str(run.path)]) == 2
        assert "is not up" in capsys.readouterr().err
        launch = Launch(owner=me, watcher=me, runtime="", control="", started_ns=0)
        run.start_launch(launch)
        assert run_app(["page", str(run.path)]) == 4
        assert "gateway.enabled = false" in capsys.readouterr().err
        run.start_launch(Launch(owner=me, watcher=me, runtime="", control="", started_ns=0, gateway=gateway.url))
        assert run_app(["page", str(run.path)]) == 0
        said = capsys.readouterr()
        link, token = said.out.strip(), token_path(run, Scope.CONTROL).read_text()
        assert (link, said.err) == (f"{gateway.url}/#token={token}", "")
        address, _, given = link.partition("#token=")
        async with gateway.http.get(address) as response:
            assert response.status == 200
        headers = {"authorization": f"Bearer {given}"}
        assert (await gateway.ask("/api/history", headers=headers))[0] == 200
        assert (await gateway.ask("/v1/models", headers=headers))[0] == 403
