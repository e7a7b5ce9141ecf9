"""The manifests for Kubernetes and KubeRay, by their published schemas and by what a run needs of a pod."""

from typing import Any

import kubernetes_validate
import pytest
import yaml
from jsonschema import ValidationError
from support.deploy.checked import check_by, check_manifest, documents, pods_of
from support.deploy.sample_kits import SAMPLE, SEVERAL, kit_of, made

FILES = [(folder, name) for folder in ("kubernetes", "kuberay") for name in ("rayjob.yaml", "raycluster.yaml")]


def cluster_of(*overlays: str) -> dict[str, Any]:
    return documents(kit_of("k8s", overlays)["raycluster.yaml"])[-1]


@pytest.mark.parametrize(("folder", "name"), FILES)
def test_every_manifest_is_what_its_schema_says(folder: str, name: str) -> None:
    found = documents(made(folder)[name])
    assert [one["kind"] for one in found][:2] == ["ConfigMap", "PersistentVolumeClaim"]
    for manifest in found:
        check_manifest(manifest)


def test_a_key_that_nobody_knows_is_found() -> None:
    cluster = cluster_of(SAMPLE)
    cluster["spec"]["headGroupSpec"]["template"]["spec"]["conainers"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        check_manifest(cluster)
    with pytest.raises(ValidationError):
        check_manifest({**cluster_of(SAMPLE), "spec": {"headGroup": {}}})


def test_a_pod_has_no_more_rights_than_its_user_and_writes_to_volumes_alone() -> None:
    for pod in pods_of(cluster_of(SAMPLE, SEVERAL)):
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        (one,) = spec["containers"]
        security = one["securityContext"]
        assert (security["readOnlyRootFilesystem"], security["allowPrivilegeEscalation"]) == (True, False)
        assert security["capabilities"] == {"drop": ["ALL"]}
        mounts = {mount["mountPath"] for mount in one["volumeMounts"]}
        assert {"/tmp", "/dev/shm", "/streamrl"} <= mounts
        assert {mount["name"] for mount in one["volumeMounts"]} == {volume["name"] for volume in spec["volumes"]}


def test_the_cluster_has_a_token_and_a_pod_that_is_ended_commits_a_checkpoint() -> None:
    cluster = cluster_of(SAMPLE, SEVERAL)
    assert cluster["spec"]["authOptions"] == {"mode": "token"}
    head = cluster["spec"]["headGroupSpec"]["template"]["spec"]
    hook = head["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert hook == ["/bin/sh", "-c", "streamrl down /streamrl/runs/quickstart || true"]
    assert head["terminationGracePeriodSeconds"] > 10


def test_the_compose_file_is_what_its_schema_says() -> None:
    for keys in ((), ("--learner.device", "cuda")):
        check_by("compose", yaml.safe_load(kit_of("docker", (SAMPLE,), *keys)["compose.yaml"]))
    with pytest.raises(ValidationError):
        check_by("compose", {"name": "x", "services": {"run": {"image": "streamrl:cpu", "readonly": True}}})
