"""What cannot be deployed as it is: the key is told, and the way out."""

import pytest
from support.deploy.sample_kits import SAMPLE, SEVERAL, config_of, kit_of

from streamrl.config import ConfigProblems
from streamrl.deploy.refusals import refusals


def told(target: str, overlays: tuple[str, ...], *keys: str) -> str:
    return "\n".join(str(problem) for problem in refusals(config_of(overlays, *keys), target))


@pytest.mark.parametrize("target", ["docker", "k8s"])
@pytest.mark.parametrize(
    ("keys", "says"),
    [
        (("--gateway.port", "0"), "gateway.port: a free port that nobody knows"),
        (("--gateway.insecure_bind", "false"), "gateway.insecure_bind: in a container the gateway has to listen"),
        (("--runs", "../runs"), "runs: not below the folder of the run"),
        (("--runs", "/data/runs"), "runs: not below the folder of the run"),
        (("--runs", "~/runs"), "runs: not below the folder of the run"),
        (("--runs", "/streamrl/../runs"), "runs: not below the folder of the run"),
        (("--gateway.tls_cert", "/etc/cert.pem", "--gateway.tls_key", "key.pem"), "gateway.tls_cert: not below"),
        (("--ray.address", "head:6379"), "ray.address: what is deployed has a Ray of its own"),
        (
            (
                *("--rollout.engine", "vllm", "--rollout.update_mode", "recompute", "--rollout.replicas", "1"),
                *("--rollout.server.endpoint", "http://127.0.0.1:9"),
            ),
            "rollout.server.endpoint: the server of this machine is not where the run will be",
        ),
        (
            ("--reward.function", "code", "--sandbox.level", "remote", "--sandbox.url", "http://127.0.0.1:9"),
            "sandbox.url: the server of this machine",
        ),
    ],
)
def test_it_is_told_with_key_and_way_out(target: str, keys: tuple[str, ...], says: str) -> None:
    (line,) = told(target, (SAMPLE,), *keys).splitlines()
    assert line.startswith(says)


@pytest.mark.parametrize("keys", [("--runs", "/streamrl/runs"), ("--runs", "some/where"), ("--ray.address", "auto")])
def test_what_lies_below_the_folder_is_taken(keys: tuple[str, ...]) -> None:
    assert told("docker", (SAMPLE,), *keys) == ""


def test_all_is_told_at_once_and_nothing_is_made() -> None:
    with pytest.raises(ConfigProblems, match=r"2 problems[^\n]*\n.*(runs|gateway\.port): .*\n.*(runs|gateway\.port): "):
        kit_of("k8s", (SAMPLE,), "--gateway.port", "0", "--runs", "../runs")


def test_one_container_has_no_other_nodes() -> None:
    assert told("docker", (SAMPLE, SEVERAL)).startswith("rollout.resources: a container is one node")
    assert told("k8s", (SAMPLE, SEVERAL)) == ""


def test_a_job_that_is_queued_again_must_see_its_folder() -> None:
    assert told("slurm", (), "--runs", "/tmp/runs").startswith("runs: a job that is queued again may get other nodes")
    assert told("slurm", (), "--runs", "/scratch/runs") == ""
    assert told("slurm", (SAMPLE,), "--gateway.port", "0") == ""


@pytest.mark.parametrize("target", ["k8s", "slurm"])
def test_a_learner_on_several_nodes_is_started_by_hand(target: str) -> None:
    keys = ("--learner.num_workers", "2", "--learner.nodes", "2", "--ray.address", "auto")
    assert told(target, (SAMPLE,), *keys).startswith("learner.nodes: these files start one node with ranks; set 1, or")
