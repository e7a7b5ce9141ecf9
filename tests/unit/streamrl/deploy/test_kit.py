"""The files of a deployment: those in the repository are what the command writes, and they follow from the config."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.deploy.sample_kits import DEPLOY, SAMPLE, SAMPLES, SEVERAL, config_of, kit_of, made
from support.repository import ROOT

from streamrl.config import load
from streamrl.deploy.demand import GIB
from streamrl.deploy.kuberay import RAY_VERSION
from streamrl.deploy.settings import config_text


def compose(*keys: str, **chosen: str) -> dict[str, Any]:
    run: dict[str, Any] = yaml.safe_load(kit_of("docker", (SAMPLE,), *keys, **chosen)["compose.yaml"])["services"][
        "run"
    ]
    return run


def ray_job(*keys: str) -> dict[str, Any]:
    documents = yaml.safe_load_all(kit_of("k8s", (SAMPLE, SEVERAL), *keys)["rayjob.yaml"])
    cluster: dict[str, Any] = next(one for one in documents if one["kind"] == "RayJob")["spec"]["rayClusterSpec"]
    return cluster


@pytest.mark.parametrize("folder", SAMPLES)
def test_the_files_in_the_repository_are_what_the_command_writes(folder: str) -> None:
    there = {str(path.relative_to(DEPLOY / folder)): path for path in (DEPLOY / folder).rglob("*") if path.is_file()}
    files = made(folder)
    assert set(there) == set(files)
    assert [name for name, text in files.items() if there[name].read_text() != text] == [], "run `make deploy-files`"


@pytest.mark.parametrize("folder", ["docker", "slurm"])
def test_the_configuration_that_is_written_is_the_runs_own_but_for_where_it_runs(folder: str, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(made(folder)["run.toml"])
    written, own = load(tmp_path / "run.toml"), config_of(SAMPLES[folder].overlays)
    assert (written.learner, written.warmup, written.rollout) == (own.learner, own.warmup, own.rollout)
    assert written.gateway.host == ("0.0.0.0" if folder == "docker" else "127.0.0.1")


def test_the_text_of_a_configuration_loads_as_that_configuration(tmp_path: Path) -> None:
    shipped = sorted((ROOT / "configs").glob("*quickstart*.toml"))
    assert shipped
    for path in shipped:
        (tmp_path / "run.toml").write_text(config_text(load(path)))
        assert load(tmp_path / "run.toml") == load(path)


def test_a_key_that_is_none_and_is_not_so_by_default_is_in_the_text(tmp_path: Path) -> None:
    config = config_of((), "--learner.algorithm.advantage", "gae", "--learner.critic.value_clip", "none")
    (tmp_path / "run.toml").write_text(config_text(config))
    assert load(tmp_path / "run.toml") == config


def test_memory_and_shared_memory_follow_from_the_estimates() -> None:
    small, large = compose(), compose("--rollout.replicas", "16")
    assert int(large["deploy"]["resources"]["limits"]["memory"][:-1]) > 6 * 1024
    assert int(small["deploy"]["resources"]["limits"]["memory"][:-1]) < 6 * 1024
    assert small["shm_size"] == "133m"
    assert compose("--ray.object_store_bytes", str(4 * GIB))["shm_size"] == "5128m"


def test_gpus_follow_from_devices_ranks_and_replicas() -> None:
    keys = ("--learner.device", "cuda", "--rollout.device", "cuda", "--rollout.replicas", "3")
    run = compose(*keys)
    assert run["image"] == "streamrl:cuda"
    (device,) = run["deploy"]["resources"]["reservations"]["devices"]
    assert device["count"] == 4
    assert "reservations" not in compose()["deploy"]["resources"]
    cluster = ray_job(*keys)
    head, worker = cluster["headGroupSpec"], cluster["workerGroupSpecs"][0]
    limits = [one["template"]["spec"]["containers"][0]["resources"]["limits"] for one in (head, worker)]
    assert [limit["nvidia.com/gpu"] for limit in limits] == ["1", "1"]
    script = kit_of("slurm", (SAMPLE, SEVERAL), *keys)["run.sbatch"]
    assert "#SBATCH --gpus-per-node=1\n" in script
    assert "--num-gpus=1 " in script


def test_ports_and_the_time_to_stop_follow_from_the_configuration() -> None:
    run = compose("--gateway.port", "9100", "--deadlines.stop_s", "60")
    assert run["ports"] == ["127.0.0.1:9100:9100"]
    assert run["stop_grace_period"] == "75s"
    scrape = yaml.safe_load(kit_of("docker", (SAMPLE,), "--gateway.port", "9100")["prometheus/prometheus.yml"])
    assert scrape["scrape_configs"][0]["static_configs"] == [{"targets": ["run:9100"]}]


def test_without_a_gateway_nothing_is_published_and_nothing_scraped() -> None:
    files = kit_of("docker", ())
    services = yaml.safe_load(files["compose.yaml"])["services"]
    assert set(services) == {"run"}
    assert "ports" not in services["run"]
    assert not [name for name in files if name.startswith(("prometheus", "grafana"))]


def test_a_server_comes_from_the_images_own_environment() -> None:
    keys = ("--rollout.engine", "vllm", "--rollout.update_mode", "recompute")
    files = kit_of("docker", (SAMPLE,), *keys)
    assert 'python = "/opt/engines/vllm/bin/python"' in files["run.toml"]
    assert "--build-arg ENGINE=vllm -t streamrl:cpu-vllm" in files["compose.yaml"]
    assert compose(*keys)["image"] == "streamrl:cpu-vllm"
    assert compose(*keys, image="registry.example/own:7")["image"] == "registry.example/own:7"


def test_each_replica_of_several_nodes_has_a_worker_that_offers_what_it_takes() -> None:
    (workers,) = ray_job("--rollout.replicas", "5")["workerGroupSpecs"]
    assert workers["replicas"] == workers["minReplicas"] == workers["maxReplicas"] == 5
    assert json.loads(json.loads(workers["rayStartParams"]["resources"])) == {"rollout-node": 1}
    assert "#SBATCH --nodes=6\n" in kit_of("slurm", (SAMPLE, SEVERAL), "--rollout.replicas", "5")["run.sbatch"]


def test_a_chart_is_a_run_on_one_node() -> None:
    assert "chart/values.yaml" in kit_of("k8s", (SAMPLE,))
    assert set(kit_of("k8s", (SAMPLE, SEVERAL))) == {"rayjob.yaml", "raycluster.yaml"}


def test_the_cluster_is_of_the_ray_that_is_installed() -> None:
    assert f"ray=={RAY_VERSION}" in (ROOT / "constraints.txt").read_text().splitlines()


def test_a_name_of_any_letters_is_a_label() -> None:
    files = kit_of("k8s", (SAMPLE,), "--name", "My_run.2-" + "x" * 50 + "-end")
    names = [one["metadata"]["name"] for one in yaml.safe_load_all(files["rayjob.yaml"])]
    assert names[-1] == "my-run-2-" + "x" * 31
    assert all(len(name) <= 63 for name in names)
