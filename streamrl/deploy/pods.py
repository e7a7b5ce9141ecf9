"""Pods for a run: what a container of streamrl is started with on Kubernetes, as data. No more rights than it needs."""

from typing import Any

from streamrl.deploy.demand import NodeDemand
from streamrl.deploy.places import HOME
from streamrl.deploy.settings import CONFIG_FILE

USER = 10001
"""Of the image."""
CONFIG_FOLDER = "/etc/streamrl"
CONFIG_PLACE = f"{CONFIG_FOLDER}/{CONFIG_FILE}"
_MIB = 2**20


def memory(size: int) -> str:
    """Bytes as Kubernetes writes them."""
    return f"{size // _MIB}Mi"


def container(name: str, image: str, node: NodeDemand, **more: Any) -> dict[str, Any]:
    """One that writes to its volumes alone. more: further keys."""
    amounts = {"cpu": str(node.cpus), "memory": memory(node.memory)}
    limits = {"memory": amounts["memory"], **({"nvidia.com/gpu": str(node.gpus)} if node.gpus else {})}
    return {
        "name": name,
        "image": image,
        "workingDir": HOME,
        "resources": {"requests": amounts, "limits": limits},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        **more,
    }


def pod_security() -> dict[str, Any]:
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def scratch(node: NodeDemand) -> list[dict[str, Any]]:
    """Volumes of the pod's own: /tmp, and a /dev/shm as large as the versions need."""
    shared = {"medium": "Memory", "sizeLimit": memory(node.shared_memory)}
    return [{"name": "tmp", "emptyDir": {}}, {"name": "shm", "emptyDir": shared}]


SCRATCH_MOUNTS = [{"name": "tmp", "mountPath": "/tmp"}, {"name": "shm", "mountPath": "/dev/shm"}]
HOME_MOUNT = {"name": "home", "mountPath": HOME}
CONFIG_MOUNT = {"name": "config", "mountPath": CONFIG_FOLDER, "readOnly": True}
