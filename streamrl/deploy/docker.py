"""The files of one container: the image, and a compose file with Prometheus and Grafana where the run has a gateway.

The container has a read-only root, no rights beyond its user's, and a home that is the folder of the outside.
"""

from pathlib import PurePosixPath
from typing import Any

from streamrl.deploy.alerts import JOB, alert_rules
from streamrl.deploy.dashboard import dashboard
from streamrl.deploy.demand import NodeDemand
from streamrl.deploy.image import dockerfile
from streamrl.deploy.places import HOME, run_folder
from streamrl.deploy.settings import CONFIG_FILE, SERVICE, Deployment, config_text, in_container
from streamrl.deploy.text import MADE_BY, json_text, yaml_text

CONFIG_PLACE = f"/etc/streamrl/{CONFIG_FILE}"
"""Of the configuration in a container."""
PROMETHEUS, GRAFANA = "prom/prometheus:v3.5.0", "grafana/grafana:12.1.1"
_MIB = 2**20


def docker_files(deployment: Deployment) -> dict[str, str]:
    """Each file's text by its name."""
    files = {
        CONFIG_FILE: config_text(in_container(deployment)),
        "Dockerfile.cpu": dockerfile("cpu"),
        "Dockerfile.cuda": dockerfile("cuda"),
        "compose.yaml": yaml_text(_compose(deployment), comment=_how(deployment)),
    }
    if deployment.config.gateway.enabled:
        files |= {
            "prometheus/prometheus.yml": yaml_text(_prometheus(deployment)),
            "prometheus/alerts.yml": yaml_text(alert_rules()),
            "grafana/provisioning/datasources/prometheus.yml": yaml_text(_SOURCES),
            "grafana/provisioning/dashboards/streamrl.yml": yaml_text(_PROVIDERS),
            "grafana/dashboards/streamrl.json": json_text(dashboard()),
        }
    return files


def _how(deployment: Deployment) -> str:
    engine = "" if deployment.engine == "none" else f" --build-arg ENGINE={deployment.engine}"
    build = f"docker build -f Dockerfile.{deployment.device}{engine} -t {deployment.image_name} CHECKOUT"
    return f"""{MADE_BY}

    {build}     # CHECKOUT: of streamrl
    STREAMRL_USER=$(id -u):$(id -g) docker compose up

`docker compose stop` commits a checkpoint; the next `up` goes on from there."""


def _compose(deployment: Deployment) -> dict[str, Any]:
    services = {SERVICE: _run(deployment)}
    if deployment.config.gateway.enabled:
        services |= {"prometheus": _prometheus_service(deployment), "grafana": _grafana_service()}
    return {"name": f"streamrl-{deployment.name}", "services": services}


def _run(deployment: Deployment) -> dict[str, Any]:
    node, gateway = deployment.demand.run, deployment.config.gateway
    published = {"ports": [f"127.0.0.1:{gateway.port}:{gateway.port}"]} if gateway.enabled else {}
    folder = run_folder(deployment.config, HOME)
    return {
        "image": deployment.image_name,
        "command": ["up", CONFIG_PLACE],
        "user": "${STREAMRL_USER:-1000:1000}",
        "working_dir": HOME,
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        # Docker's own default forbids to run what a compiler has put there.
        "tmpfs": ["/tmp:mode=1777,exec,size=4g"],
        "shm_size": f"{node.shared_memory // _MIB}m",
        "volumes": [_mount(deployment.home, HOME), _mount(f"./{CONFIG_FILE}", CONFIG_PLACE, read_only=True)],
        **published,
        "stop_signal": "SIGTERM",
        "stop_grace_period": f"{deployment.grace_s}s",
        "restart": "on-failure:3",
        "healthcheck": {
            "test": ["CMD", "streamrl", "status", "--live", folder],
            "interval": "30s",
            "timeout": "10s",
            "start_period": "5m",
            "retries": 3,
        },
        "deploy": {"resources": _resources(node)},
    }


def _mount(source: str, target: str, *, read_only: bool = False) -> dict[str, Any]:
    """A folder or file of the outside. Compose reads a dollar sign as the name of a variable."""
    mount = {"type": "bind", "source": source.replace("$", "$$"), "target": target}
    return {**mount, "read_only": True} if read_only else mount


def _resources(node: NodeDemand) -> dict[str, Any]:
    # No limit of processors: Docker refuses one beyond what the machine has, and a run does with fewer.
    limits = {"memory": f"{node.memory // _MIB}m"}
    if not node.gpus:
        return {"limits": limits}
    devices = [{"driver": "nvidia", "count": node.gpus, "capabilities": ["gpu"]}]
    return {"limits": limits, "reservations": {"devices": devices}}


def _prometheus_service(deployment: Deployment) -> dict[str, Any]:
    return {
        "image": PROMETHEUS,
        # The token of the gateway is readable by the run's user alone.
        "user": "${STREAMRL_USER:-1000:1000}",
        "command": ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/tmp/prometheus"],
        "read_only": True,
        "tmpfs": ["/tmp:mode=1777"],
        "volumes": [
            _mount("./prometheus", "/etc/prometheus", read_only=True),
            _mount(deployment.home, HOME, read_only=True),
        ],
        "ports": ["127.0.0.1:9090:9090"],
        "depends_on": [SERVICE],
    }


def _grafana_service() -> dict[str, Any]:
    return {
        "image": GRAFANA,
        "environment": {
            "GF_AUTH_ANONYMOUS_ENABLED": "true",
            "GF_AUTH_ANONYMOUS_ORG_ROLE": "Viewer",
            "GF_AUTH_DISABLE_LOGIN_FORM": "true",
            "GF_ANALYTICS_REPORTING_ENABLED": "false",
            "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
        },
        "volumes": [
            _mount("./grafana/provisioning", "/etc/grafana/provisioning", read_only=True),
            _mount("./grafana/dashboards", "/var/lib/grafana/dashboards", read_only=True),
        ],
        "ports": ["127.0.0.1:3000:3000"],
        "depends_on": ["prometheus"],
    }


def _prometheus(deployment: Deployment) -> dict[str, Any]:
    gateway, folder = deployment.config.gateway, run_folder(deployment.config, HOME)
    scrape: dict[str, Any] = {
        "job_name": JOB,
        "scheme": "https" if gateway.has_tls else "http",
        "metrics_path": "/metrics",
        # Read anew for each scrape: the run writes it when it starts for the first time.
        "authorization": {"type": "Bearer", "credentials_file": f"{folder}/gateway-token.control"},
        "static_configs": [{"targets": [f"{SERVICE}:{gateway.port}"]}],
    }
    if gateway.has_tls:
        scrape["tls_config"] = {"ca_file": str(PurePosixPath(HOME) / str(gateway.tls_cert))}
    return {
        "global": {"scrape_interval": "5s", "evaluation_interval": "15s"},
        "rule_files": ["/etc/prometheus/alerts.yml"],
        "scrape_configs": [scrape],
    }


_SOURCES = {
    "apiVersion": 1,
    "datasources": [
        {
            "name": "Prometheus",
            "type": "prometheus",
            "access": "proxy",
            "url": "http://prometheus:9090",
            "isDefault": True,
        }
    ],
}
_PROVIDERS = {
    "apiVersion": 1,
    "providers": [{"name": "streamrl", "type": "file", "options": {"path": "/var/lib/grafana/dashboards"}}],
}
