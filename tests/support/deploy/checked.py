"""Files of a deployment, read and checked as those who take them do."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml
from jsonschema import Draft7Validator
from support.repository import TESTS

SCHEMAS = TESTS / "deploy" / "schemas"
KUBERNETES = ("1.31", "1.37")
"""The oldest release that the chart takes, and the newest whose schema is here."""
_OF_OTHERS = {"ray.io": "ray", "monitoring.coreos.com": "monitoring"}


def documents(text: str) -> list[dict[str, Any]]:
    """Those of a YAML file, without empty ones."""
    return [one for one in yaml.safe_load_all(text) if one]


def check_manifest(manifest: dict[str, Any]) -> None:
    """By the published schema of its kind, with no key that it does not know. Raises what its reader raises."""
    group = manifest["apiVersion"].partition("/")[0]
    if group in _OF_OTHERS:
        check_by(_OF_OTHERS[group], manifest)
        for number, pod in enumerate(pods_of(manifest)):
            check_manifest({"apiVersion": "v1", "kind": "Pod", **pod, "metadata": {"name": f"pod-{number}"}})
        return
    for version in KUBERNETES:
        kubernetes_validate.validate(manifest, version, strict=True)


def pods_of(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """The pods that a Ray cluster or a job makes, as templates."""
    spec = manifest["spec"]
    cluster = spec.get("rayClusterSpec", spec)
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]] if "headGroupSpec" in cluster else []
    return [group["template"] for group in groups] or ([spec["template"]] if "template" in spec else [])


def check_by(name: str, value: Any) -> None:
    """By a schema of `tests/deploy/schemas`. Raises jsonschema's ValidationError."""
    validator(name).validate(value)


@cache
def validator(name: str) -> Draft7Validator:
    schema = json.loads((SCHEMAS / f"{name}.json").read_text())
    Draft7Validator.check_schema(schema)
    return Draft7Validator(schema)


def program(name: str) -> Path:
    """One that came with a package beside the tests, as `make test-deploy` lays it."""
    return Path(kubernetes_validate.__file__).parents[1] / "bin" / name
