"""The chart, rendered by a real helm."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import helm_python as helm
import pytest
from support.deploy.checked import check_manifest, documents, pods_of
from support.deploy.sample_kits import DEPLOY, SAMPLE, kit_of

CHART = DEPLOY / "kubernetes" / "chart"
WATCHED = {"serviceMonitor": True, "rules": True, "dashboard": True, "tokenSecret": "quickstart-token"}
VALUES: Mapping[str, dict[str, Any]] = {
    "as they are": {},
    "watched": {"metrics": WATCHED},
    "behind TLS and watched": {"metrics": WATCHED, "gateway": {"scheme": "HTTPS"}},
    "without a gateway": {"gateway": {"enabled": False}},
    "another model, more replicas": {"model": "/streamrl/models/qwen", "replicas": 4},
    "GPUs": {"resources": {"gpus": 2, "cpus": 8, "memory": "64Gi"}},
    "a volume that is there": {"storage": {"existingClaim": "mine"}},
    "no budget": {"podDisruptionBudget": False},
    "a place": {
        "nodeSelector": {"pool": "gpu"},
        "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "imagePullSecrets": [{"name": "registry"}],
    },
}
IMPOSSIBLE: Mapping[str, tuple[dict[str, Any], str]] = {
    "no replica": ({"replicas": 0}, "at '/replicas': minimum: got 0, want 1"),
    "a port beyond all": ({"gateway": {"port": 99999}}, "at '/gateway/port': maximum"),
    "fewer GPUs than none": ({"resources": {"gpus": -1}}, "at '/resources/gpus': minimum"),
    "memory in no unit": ({"resources": {"memory": "lots"}}, "at '/resources/memory': 'lots' does not match pattern"),
    "a model outside the volume": ({"model": "models/qwen"}, "at '/model'"),
    "a value of no name": ({"modle": "x"}, "additional properties 'modle' not allowed"),
    "a watch without a token": ({"metrics": {"serviceMonitor": True}}, "metrics.tokenSecret: name the Secret"),
    "a watch without a gateway": (
        {"metrics": WATCHED, "gateway": {"enabled": False}},
        "metrics.serviceMonitor needs gateway.enabled",
    ),
}


def rendered(values: dict[str, Any], chart: Path = CHART) -> dict[str, dict[str, Any]]:
    """Manifests by their kind; of two of one kind the later."""
    with helm.Chart.load(str(chart)) as loaded:
        files = loaded.render(values, name="demo", namespace="space")
    found = [one for name, text in files.items() if name.endswith(".yaml") for one in documents(text)]
    assert found
    for manifest in found:
        check_manifest(manifest)
    return {manifest["kind"]: manifest for manifest in found}


def pod(values: dict[str, Any]) -> dict[str, Any]:
    (template,) = pods_of(rendered(values)["Job"])
    return template


def container(values: dict[str, Any]) -> dict[str, Any]:
    (one,) = pod(values)["spec"]["containers"]
    return one


def test_it_is_a_chart_in_which_helm_finds_no_fault() -> None:
    found = helm.lint(str(CHART), strict=True)
    assert [one for one in found["messages"] if one["error"] != "icon is recommended"] == []


@pytest.mark.parametrize("name", VALUES)
def test_what_it_renders_is_what_the_schemas_say(name: str) -> None:
    assert {"ConfigMap", "Job"} <= set(rendered(VALUES[name]))


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_impossible_values_are_refused_by_one_message(name: str) -> None:
    values, says = IMPOSSIBLE[name]
    with pytest.raises(helm.HelmError) as told:
        rendered(values)
    assert says in str(told.value)


def test_the_probes_ask_the_gateway() -> None:
    one = container({})
    asked = {name: one[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert asked == {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}
    without = container(VALUES["without a gateway"])
    assert without["readinessProbe"]["exec"]["command"][:3] == ["streamrl", "status", "--live"]
    assert "livenessProbe" not in without


def test_the_start_has_the_time_that_the_configuration_allows(tmp_path: Path) -> None:
    for name, text in kit_of("k8s", (SAMPLE,), "--deadlines.start_s", "600", "--deadlines.stop_s", "90").items():
        place = tmp_path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    (template,) = pods_of(rendered({}, tmp_path / "chart")["Job"])
    probe = template["spec"]["containers"][0]["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 600
    assert template["spec"]["terminationGracePeriodSeconds"] == 105


def test_a_pod_that_is_ended_commits_a_checkpoint_and_goes_on_elsewhere() -> None:
    hook = container({})["lifecycle"]["preStop"]["exec"]["command"]
    assert hook == ["streamrl", "down", "/streamrl/runs/quickstart"]
    rules = rendered({})["Job"]["spec"]["podFailurePolicy"]["rules"]
    codes = {rule["action"]: rule["onExitCodes"]["values"] for rule in rules if "onExitCodes" in rule}
    assert codes == {"Ignore": [130, 143], "FailJob": [2]}


def test_service_budget_and_monitor_select_the_pod() -> None:
    found = rendered(VALUES["watched"])
    labels = found["Job"]["spec"]["template"]["metadata"]["labels"].items()
    selectors = [
        found["Service"]["spec"]["selector"],
        found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        found["ServiceMonitor"]["spec"]["selector"]["matchLabels"],
    ]
    assert all(selector.items() <= labels for selector in selectors)
    assert (
        found["ServiceMonitor"]["spec"]["selector"]["matchLabels"].items()
        <= found["Service"]["metadata"]["labels"].items()
    )
    named = [port["name"] for port in container({})["ports"]]
    assert found["Service"]["spec"]["ports"][0]["targetPort"] in named


def test_values_go_before_the_configuration_as_arguments() -> None:
    words = container({"model": "/streamrl/models/qwen", "replicas": 4, "gateway": {"port": 9100, "names": ["own"]}})[
        "args"
    ]
    given = dict(zip(words[2::2], words[3::2], strict=True))
    names = json.loads(given.pop("--gateway.names"))
    assert words[:2] == ["up", "/etc/streamrl/run.toml"]
    assert given == {
        "--gateway.port": "9100",
        "--model.preset": "none",
        "--model.path": "/streamrl/models/qwen",
        "--rollout.replicas": "4",
    }
    assert names == ["own", "demo", "demo.space", "demo.space.svc"]


def test_it_has_the_alerts_and_the_dashboard_of_the_other_files() -> None:
    found = rendered(VALUES["watched"])
    (group,) = found["PrometheusRule"]["spec"]["groups"]
    (other,) = documents((DEPLOY / "docker/prometheus/alerts.yml").read_text())
    assert [group] == other["groups"]
