"""The runs beside this one: told by name, read by name, and nothing else of the machine."""

import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from support.gateway.local_gateway import LocalGateway, local_gateway

from streamrl.gateway.auth import Scope
from streamrl.gateway.refusal import Refusal
from streamrl.observability.metrics import MetricsWriter
from streamrl.services.gateway.page import other_runs
from streamrl.services.gateway.page.other_runs import OtherRuns
from streamrl.services.run.folder import RunFolder


def made(path: Path, *, steps: int = 3, written_s: int = 0) -> Path:
    """A run folder with metrics. written_s: when they were written last."""
    path.mkdir()
    RunFolder.create(path, path.name)
    with MetricsWriter(path / "metrics.jsonl") as metrics:
        for step in range(1, steps + 1):
            metrics.write({"step": step, "reward/mean": step / 10, "time/step": 1.0})
    os.utime(path / "metrics.jsonl", (written_s, written_s))
    return path


def rewards(others: OtherRuns, name: str) -> list[float]:
    return others.history(name).reduced(100)["figures"]["reward/mean"]["value"]


def test_runs_are_named_newest_first_without_this_one_and_without_what_is_none(tmp_path: Path) -> None:
    own = made(tmp_path / "own")
    made(tmp_path / "older", written_s=10)
    (made(tmp_path / "newer", written_s=20) / "summary.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    RunFolder.create(_folder(tmp_path / "without-metrics"), "without-metrics")
    (_folder(tmp_path / "without-record") / "metrics.jsonl").write_text('{"step": 1}\n')
    (made(tmp_path / "damaged", written_s=30) / "run.json").write_text("[]")
    os.mkfifo(_folder(tmp_path / "pipe") / "metrics.jsonl")
    others = OtherRuns(own)
    assert others.names() == [{"name": "newer", "state": "finished"}, {"name": "older", "state": "new"}]
    others.close()


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_a_name_that_cannot_be_told_is_left_out(tmp_path: Path) -> None:
    own = made(tmp_path / "own")
    other = made(tmp_path / "other")
    other.rename(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    assert OtherRuns(own).names() == []


def test_the_figures_of_a_run_are_read_as_it_goes_on(tmp_path: Path) -> None:
    own, other = made(tmp_path / "own"), made(tmp_path / "other")
    others = OtherRuns(own)
    assert rewards(others, "other") == [0.1, 0.2, 0.3]
    with MetricsWriter(other / "metrics.jsonl") as metrics:
        metrics.write({"step": 4, "reward/mean": 0.4})
    assert rewards(others, "other") == [0.1, 0.2, 0.3, 0.4]
    others.close()


def test_few_runs_are_kept_open_the_ones_that_were_asked_for_last(tmp_path: Path) -> None:
    own = made(tmp_path / "own")
    names = [made(tmp_path / f"run-{number}").name for number in range(other_runs.OPEN + 3)]
    others = OtherRuns(own)
    for name in (*names, names[0]):
        assert len(rewards(others, name)) == 3
    assert list(others._tails) == [*names[-other_runs.OPEN + 1 :], names[0]]
    others.close()
    assert others._tails == {}


@pytest.mark.parametrize(
    "name", ["own", "..", ".", "other/../other", "/etc", "../own", "other/", "", "other\x00", "nobody", "caf\udce9"]
)
def test_what_is_no_name_of_a_run_there_is_refused(tmp_path: Path, name: str) -> None:
    own = made(tmp_path / "own")
    made(tmp_path / "other")
    with pytest.raises(Refusal, match="with metrics lies beside this one") as refused:
        OtherRuns(own).history(name)
    assert (refused.value.status, refused.value.code) == (404, "not_found")
    str(refused.value).encode()


async def test_the_gateway_tells_them_to_who_may_control(tmp_path: Path) -> None:
    async with local_gateway(tmp_path) as gateway:
        assert (await gateway.ask("/api/runs")) == (200, {"runs": []})
        made(tmp_path / "other")
        assert (await gateway.ask("/api/runs")) == (200, {"runs": [{"name": "other", "state": "new"}]})
        told = await history(gateway, "other")
        assert told["figures"] == {"reward/mean": {"step": [1, 2, 3], "value": [0.1, 0.2, 0.3]}}
        assert told["clock"]["time_s"] == [1.0, 2.0, 3.0]
        assert (await history(gateway, ""))["rows"] == 0, "this run, which has made no step"
        for path in ("/api/runs", "/api/history?run=other"):
            for scope in (Scope.GENERATE, Scope.SUBMIT):
                headers = {"authorization": f"Bearer {gateway.token(scope)}"}
                assert (await gateway.ask(path, headers=headers))[0] == 403
            assert (await gateway.ask(path, headers={}))[0] == 401
        for name in ("../other", str(tmp_path / "other"), "nobody", "x" * 256):
            status, answer = await gateway.ask(f"/api/history?run={quote(name, safe='')}")
            refused = (404, "not_found") if len(name) < 256 else (400, "invalid_value")
            assert (status, answer["error"]["code"]) == refused


async def history(gateway: LocalGateway, run: str) -> dict[str, Any]:
    status, told = await gateway.ask(f"/api/history?points=50&figure=reward/mean&run={run}")
    assert status == 200, told
    return told
