"""Dashboard and alerts: every expression is one of PromQL, and names what a live run's `/metrics` writes."""

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml
from support.deploy.checked import validator
from support.deploy.sample_kits import DEPLOY, SAMPLE, kit_of
from support.runs.live_run import live_run, prepare

from streamrl.deploy.alerts import alert_rules
from streamrl.deploy.dashboard import PANELS, dashboard

KEYS = ("--gateway.enabled", "true", "--learner.steps", "100000", "--rollout.replicas", "1", "--eval.every", "2")
_OWN = {"up", "ALERTS"}
"""Metrics that Prometheus itself writes."""


def expressions() -> dict[str, str]:
    """Each by where it stands."""
    rules = {rule["alert"]: rule["expr"] for group in alert_rules()["groups"] for rule in group["rules"]}
    targets = {
        f"{panel['title']}: {target['legendFormat']}": target["expr"].replace("$instance", ".+")
        for panel in dashboard()["panels"]
        for target in panel["targets"]
    }
    return {**rules, **targets}


def metrics_of(expression: str) -> set[str]:
    """Names of its selectors. Raises ValueError for what is no PromQL."""
    parsed = promql.parse(expression)
    found = set()
    waiting = [parsed]
    while waiting:
        node = waiting.pop()
        if isinstance(node, promql.VectorSelector):
            found.add(node.name)
        for part in ("expr", "lhs", "rhs", "vector_selector", "param"):
            waiting += [child] if (child := getattr(node, part, None)) is not None else []
        waiting += getattr(node, "args", None) or []
    return found


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, streamrl_path: Path) -> Iterator[set[str]]:
    """Names in the `/metrics` of a run that trains, and has been asked before."""
    folder = tmp_path_factory.mktemp("watched")
    prepare(folder)
    with live_run(folder, streamrl_path, "watched", *KEYS) as run:
        run.until_step(4, kind="eval")
        run.until_step(6)
        yield set(re.findall(r"^([a-z_]+)[ {]", asked(run.folder) + asked(run.folder), re.MULTILINE))
        run.process.terminate()
        assert run.end()[0] == 143


def asked(folder: Path) -> str:
    """As Prometheus asks, with the token of the run folder."""
    launch = json.loads((folder / "run.json").read_text())["launch"]
    token = (folder / "gateway-token.control").read_text()
    request = urllib.request.Request(f"{launch['gateway']}/metrics", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        text: str = answer.read().decode()
    return text


@pytest.mark.parametrize("place", expressions())
def test_each_names_what_a_live_run_writes(written: set[str], place: str) -> None:
    named = metrics_of(expressions()[place])
    assert named, expressions()[place]
    assert named - written - _OWN == set()


def test_a_metric_that_nobody_writes_would_be_found() -> None:
    assert metrics_of('sum by (a) (rate(no_such{b="c"}[5m])) / max_over_time(other[1h:1m])') == {"no_such", "other"}
    with pytest.raises(ValueError, match=r"unclosed|syntax|unexpected|parse"):
        metrics_of("rate(streamrl_step[5m)")


def test_the_rules_are_what_prometheus_takes() -> None:
    definitions = validator("monitoring").schema["definitions"]
    validator("monitoring").evolve(schema=definitions["groups"]).validate(alert_rules())
    names = [rule["alert"] for rule in alert_rules()["groups"][0]["rules"]]
    assert len(set(names)) == len(names)


def test_the_dashboard_has_each_panel_at_a_place_of_its_own() -> None:
    made: dict[str, Any] = json.loads((DEPLOY / "docker/grafana/dashboards/streamrl.json").read_text())
    assert made == dashboard()
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in made["panels"]}
    assert len(places) == len(made["panels"]) == len(PANELS)
    assert all(place[0] + panel["gridPos"]["w"] <= 24 for place, panel in zip(places, made["panels"], strict=True))
    for panel in made["panels"]:
        letters = [target["refId"] for target in panel["targets"]]
        assert letters == sorted(set(letters))


def test_prometheus_asks_the_gateway_with_the_runs_own_token() -> None:
    files = kit_of("docker", (SAMPLE,))
    (scrape,) = yaml.safe_load(files["prometheus/prometheus.yml"])["scrape_configs"]
    assert scrape["authorization"]["credentials_file"] == "/streamrl/runs/quickstart/gateway-token.control"
    services = yaml.safe_load(files["compose.yaml"])["services"]
    assert services["prometheus"]["user"] == services["run"]["user"]
    home = {"type": "bind", "source": "./..", "target": "/streamrl", "read_only": True}
    assert home in services["prometheus"]["volumes"]
