"""A run on a Ray cluster that KubeRay makes: a RayJob, which is a cluster with the run as its job, and the same cluster
alone. The head has the run's folder, its learner and its queue; each worker has one replica.

KubeRay gives the cluster a token (`authOptions`, from 1.5.1 on): without one everybody in the network may run code
there.
"""

import json
from typing import Any

from streamrl.config.schema.run import Config
from streamrl.deploy.demand import NodeDemand
from streamrl.deploy.places import HOME, run_folder
from streamrl.deploy.pods import (
    CONFIG_MOUNT,
    CONFIG_PLACE,
    HOME_MOUNT,
    SCRATCH_MOUNTS,
    container,
    memory,
    pod_security,
    scratch,
)
from streamrl.deploy.settings import CONFIG_FILE, Deployment, config_text, in_container
from streamrl.deploy.text import MADE_BY, yaml_text

RAY_VERSION = "2.60.0"
NODE_RUNS = "/scratch/streamrl"
"""Of a worker: where the rows lie that its replica writes (STREAMRL_NODE_RUNS)."""
_HEAD_PORTS = {"gcs-server": 6379, "dashboard": 8265, "client": 10001}
_TRIES = 10


def kuberay_files(deployment: Deployment) -> dict[str, str]:
    """Each file's text by its name."""
    config = in_container(deployment, "auto")
    supplies = [_config_map(deployment, config), _claim(deployment)]
    how = (
        f"{MADE_BY}\n\n    kubectl apply -f rayjob.yaml      # KubeRay's operator is there, and the image in a registry"
    )
    return {
        "rayjob.yaml": yaml_text(*supplies, _ray_job(deployment, config), comment=how),
        "raycluster.yaml": yaml_text(
            *supplies, _ray_cluster(deployment, config), comment=how.replace("rayjob", "raycluster")
        ),
    }


def _metadata(deployment: Deployment, suffix: str = "") -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": "streamrl", "app.kubernetes.io/instance": deployment.name}
    return {"name": f"{deployment.name}{suffix}", "labels": labels}


def _config_map(deployment: Deployment, config: Config) -> dict[str, Any]:
    data = {CONFIG_FILE: config_text(config)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(deployment, "-config"), "data": data}


def _claim(deployment: Deployment) -> dict[str, Any]:
    """Of the run's home."""
    request = {"storage": memory(deployment.demand.disk)}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": _metadata(deployment, "-home"),
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": request}},
    }


def _ray_job(deployment: Deployment, config: Config) -> dict[str, Any]:
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": _metadata(deployment),
        "spec": {
            "entrypoint": f"streamrl up {CONFIG_PLACE}",
            # Each try has a cluster of its own, and goes on from the run folder.
            "backoffLimit": _TRIES,
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": 600,
            "rayClusterSpec": _cluster_spec(deployment, config),
        },
    }


def _ray_cluster(deployment: Deployment, config: Config) -> dict[str, Any]:
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": _metadata(deployment),
        "spec": _cluster_spec(deployment, config),
    }


def _cluster_spec(deployment: Deployment, config: Config) -> dict[str, Any]:
    workers = [] if deployment.demand.rollout is None else [_workers(deployment, deployment.demand.rollout)]
    return {
        "rayVersion": RAY_VERSION,
        "authOptions": {"mode": "token"},
        "headGroupSpec": _head(deployment, config),
        "workerGroupSpecs": workers,
    }


def _head(deployment: Deployment, config: Config) -> dict[str, Any]:
    node, gateway = deployment.demand.run, config.gateway
    ports = {**_HEAD_PORTS, **({"gateway": gateway.port} if gateway.enabled else {})}
    down = f"streamrl down {run_folder(config, HOME)} || true"
    head = container(
        "ray-head",
        deployment.image_name,
        node,
        ports=[{"name": name, "containerPort": port} for name, port in ports.items()],
        # What evicts the pod waits for it: the run commits a checkpoint, and the next try goes on from there.
        lifecycle={"preStop": {"exec": {"command": ["/bin/sh", "-c", down]}}},
        volumeMounts=[*SCRATCH_MOUNTS, HOME_MOUNT, CONFIG_MOUNT],
    )
    volumes = [
        *scratch(node),
        {"name": "home", "persistentVolumeClaim": {"claimName": f"{deployment.name}-home"}},
        {"name": "config", "configMap": {"name": f"{deployment.name}-config"}},
    ]
    started = {"dashboard-host": "0.0.0.0", **_started(node, config)}
    return {"rayStartParams": started, "template": _pod(deployment, head, volumes)}


def _workers(deployment: Deployment, node: NodeDemand) -> dict[str, Any]:
    worker = container(
        "ray-worker",
        deployment.image_name,
        node,
        env=[{"name": "STREAMRL_NODE_RUNS", "value": NODE_RUNS}],
        volumeMounts=[*SCRATCH_MOUNTS, {"name": "rows", "mountPath": NODE_RUNS}, {"name": "work", "mountPath": HOME}],
    )
    volumes = [*scratch(node), {"name": "rows", "emptyDir": {}}, {"name": "work", "emptyDir": {}}]
    count = deployment.demand.rollout_nodes
    return {
        "groupName": "rollout",
        "replicas": count,
        "minReplicas": count,
        "maxReplicas": count,
        "rayStartParams": _started(node, deployment.config),
        "template": _pod(deployment, worker, volumes),
    }


def _started(node: NodeDemand, config: Config) -> dict[str, str]:
    """What `ray start` is told of a node: all values as text, and resources as JSON in quotes of a shell."""
    told = {"num-cpus": str(node.cpus), "object-store-memory": str(config.ray.object_store_bytes)}
    if node.resources:
        told["resources"] = json.dumps(json.dumps(node.resources))
    return told


def _pod(deployment: Deployment, one: dict[str, Any], volumes: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "metadata": {"labels": _metadata(deployment)["labels"]},
        "spec": {
            "securityContext": pod_security(),
            "terminationGracePeriodSeconds": deployment.grace_s,
            "automountServiceAccountToken": False,
            "containers": [one],
            "volumes": volumes,
        },
    }
