"""The Helm chart of a run on one node. Its templates are the same for every run; its values are filled in."""

from typing import Any

from streamrl.deploy.alerts import alert_rules
from streamrl.deploy.dashboard import dashboard
from streamrl.deploy.places import HOME, run_folder
from streamrl.deploy.pods import memory
from streamrl.deploy.settings import Deployment, config_text, in_container
from streamrl.deploy.text import json_text, template, yaml_text

_TEMPLATES = (
    "Chart.yaml",
    ".helmignore",
    "values.schema.json",
    "templates/_helpers.tpl",
    "templates/NOTES.txt",
    "templates/configmap.yaml",
    "templates/job.yaml",
    "templates/monitoring.yaml",
    "templates/pdb.yaml",
    "templates/pvc.yaml",
    "templates/service.yaml",
)
_VALUES_SAY = """The values of the chart, filled in from a run's configuration by `streamrl deploy k8s`.

    helm install NAME chart --set image.repository=REGISTRY/streamrl

values.schema.json has what each may be. `model` and `replicas` go before what the configuration says."""


def chart_files(deployment: Deployment) -> dict[str, str]:
    """Each file's text by its name."""
    files = {f"chart/{name}": template(f"chart/{name}") for name in _TEMPLATES}
    return files | {
        "chart/values.yaml": yaml_text(_values(deployment), comment=_VALUES_SAY),
        "chart/files/alerts.yaml": yaml_text(alert_rules()),
        "chart/files/dashboard.json": json_text(dashboard()),
    }


def _values(deployment: Deployment) -> dict[str, Any]:
    config, node = in_container(deployment), deployment.demand.run
    path, slash, last = deployment.image_name.rpartition("/")
    repository, _, tag = last.partition(":")
    return {
        "image": {
            "repository": f"{path}{slash}{repository}",
            "tag": tag or "latest",
            "pullPolicy": "IfNotPresent",
        },
        "imagePullSecrets": [],
        "config": config_text(config),
        "runFolder": run_folder(config, HOME),
        "model": None,
        "replicas": None,
        "resources": {"cpus": node.cpus, "memory": memory(node.memory), "gpus": node.gpus},
        "sharedMemory": memory(node.shared_memory),
        "storage": {
            "size": memory(deployment.demand.disk),
            "className": None,
            "accessMode": "ReadWriteOnce",
            "existingClaim": None,
        },
        "gateway": {
            "enabled": config.gateway.enabled,
            "port": config.gateway.port or 8000,
            "scheme": "HTTPS" if config.gateway.has_tls else "HTTP",
            "names": list(deployment.config.gateway.names),
        },
        "startSeconds": 2 * round(config.deadlines.start_s),
        "graceSeconds": deployment.grace_s,
        "retries": 10,
        "metrics": {"serviceMonitor": False, "rules": False, "dashboard": False, "tokenSecret": None},
        "podDisruptionBudget": True,
        "nodeSelector": {},
        "tolerations": [],
    }
