"""Which GPUs the parts of a run ask Ray for, and what is said where there are too few. None is needed here."""

from pathlib import Path
from typing import Any

import pytest
from support.repository import ROOT
from support.runs.probe_parts import Handle

from streamrl.config import Config, load_args
from streamrl.config.estimates.gpus import GpuDemand, gpus_for, gpus_of_a_rank, gpus_of_a_replica
from streamrl.config.estimates.machine import read_machine, visible_gpus
from streamrl.scheduling.placement import Supply
from streamrl.services.controller.parts import Parts
from streamrl.services.controller.supply import cannot_be_placed

QUICKSTART = ROOT / "configs" / "quickstart.toml"
ON_GPUS = ("--learner.device=cuda", "--rollout.device=cuda", "--rollout.deterministic=false")
SERVER = ("--rollout.engine=vllm", "--rollout.device=cuda")
CLUSTER = ("--ray.address=10.0.0.1:6379",)


def config_of(*args: str) -> Config:
    return load_args(QUICKSTART, list(args))


def node(name: str, gpus: float) -> Supply:
    return Supply(name, f"host-{name}", {"CPU": 8.0, "GPU": gpus, "rollout-node": 2.0}, {"CPU": 8.0})


class ListedParts(Parts):
    """Says which GPUs of Ray's each part is started with, and starts nothing."""

    def __init__(self, config: Config) -> None:
        super().__init__("run", config)
        self.asked: list[tuple[str, Any]] = []

    def _make(self, name: str, cls: type, threads: int, *args: Any, **options: Any) -> Any:
        self.asked.append((name, options.get("num_gpus", 0)))
        return Handle()


def asked(config: Config) -> list[tuple[str, Any]]:
    """Of two ranks, the first of which is made once more, as after its death, and of the parts beside them."""
    parts = ListedParts(config)
    for rank in (0, 1, 0):
        parts.learner(rank, "meeting", Handle(), Handle())
    for index in (0, 0):
        parts.replica(index, Handle(), Handle())
    parts.reward(Handle())
    parts.weight_store()
    return parts.asked


def test_each_rank_and_each_replica_has_a_gpu_to_itself_also_when_it_is_made_again() -> None:
    others = [("reward", 0), ("weights", 0)]
    ranks, replicas = [("learner-0", 1), ("learner-1", 1), ("learner-0", 1)], [("rollout-0", 1)] * 2
    assert asked(config_of(*ON_GPUS)) == [*ranks, *replicas, *others]
    assert {gpus for _, gpus in asked(config_of())} == {0}


@pytest.mark.parametrize(
    ("args", "replica"),
    [
        ((), 0),
        (ON_GPUS, 1),
        (SERVER, 1),
        ((*SERVER, "--rollout.server.tensor_parallel=4"), 4),
        # The server has what it was started with; here its model is evaluated.
        ((*SERVER, "--rollout.replicas=1", "--rollout.server.endpoint=http://127.0.0.1:8000"), 1),
        (("--rollout.engine=scripted", "--rollout.device=cuda", "--rollout.deterministic=false"), 0),
        ((*ON_GPUS, *CLUSTER, "--rollout.resources={GPU=0.5}"), 0.5),
        ((*ON_GPUS, *CLUSTER, "--rollout.resources={rollout-node=1}"), 1),
        ((*CLUSTER, "--rollout.resources={GPU=2}"), 2),
    ],
)
def test_a_replica_asks_for_what_its_engine_computes_on_unless_its_resources_say(args: tuple[str, ...], replica: float):
    config = config_of(*args)
    assert gpus_of_a_replica(config) == replica
    assert gpus_of_a_rank(config) == ("--learner.device=cuda" in args)
    assert dict(asked(config))["rollout-0"] == replica


def test_a_run_whose_own_node_has_too_few_gpus_is_refused_with_who_asks_for_how_many() -> None:
    config = config_of(*ON_GPUS, "--learner.num_workers=2", "--rollout.replicas=3")
    assert cannot_be_placed(config, [node("a", 5.0)], "a") == ""
    assert cannot_be_placed(config, [node("a", 4.0), node("b", 9.0)], "a") == (
        'this node: rollout.device: the run asks for 5 GPUs, and there are 4: learner.device = "cuda" asks for 2 '
        '(learner.num_workers = 2), rollout.device = "cuda" asks for 3 (rollout.replicas = 3); set "cpu", lower these '
        "numbers, or have parts share a GPU (learner.gpu_share, rollout.gpu_share)"
    )
    assert cannot_be_placed(config_of(), [], "a") == ""


@pytest.mark.parametrize(
    ("shares", "gpus"),
    [
        ([(1, 1.0), (2, 1.0)], 3),
        ([(2, 4.0)], 8),
        ([(1, 0.5), (1, 0.5)], 1),
        ([(3, 1 / 3)], 1),
        ([(3, 0.6)], 3),  # 1.8 of a GPU, and no two of them on one
        ([(2, 0.6), (2, 0.4)], 2),
        ([(1, 1.0), (4, 0.25), (1, 0.1)], 3),
        ([], 0),
    ],
)
def test_a_share_lies_on_one_gpu(shares: list[tuple[int, float]], gpus: int) -> None:
    assert gpus_for([GpuDemand("learner.device", parts, each, "") for parts, each in shares]) == gpus


def test_a_share_is_what_ray_is_asked_for() -> None:
    config = config_of(*ON_GPUS, "--learner.gpu_share=0.5", "--rollout.gpu_share=0.25")
    assert (gpus_of_a_rank(config), gpus_of_a_replica(config)) == (0.5, 0.25)
    assert dict(asked(config))["learner-0"] == 0.5


def test_replicas_that_are_placed_by_their_resources_are_no_burden_of_the_runs_own_node() -> None:
    config = config_of(*ON_GPUS, *CLUSTER, "--rollout.replicas=8", "--rollout.resources={rollout-node=1}")
    assert cannot_be_placed(config, [node("a", 1.0), node("b", 1.0)], "a") == ""
    why = cannot_be_placed(config, [node("a", 1.0), Supply("c", "host-c", {"rollout-node": 1.0}, {})], "c")
    assert why.startswith(
        'this node: learner.device: the run asks for 1 GPU, and there are 0: learner.device = "cuda" '
    )
    alone = [Supply("c", "host-c", {"rollout-node": 1.0}, {})]
    assert cannot_be_placed(config, alone, "c").startswith(
        "rollout.resources: a replica takes { GPU = 1, rollout-node = 1 } of its node, and no node has as much; free"
    )


@pytest.mark.parametrize(
    ("devices", "visible", "count"),
    [(4, None, 4), (4, "", 0), (4, "NoDevFiles", 0), (4, "-1", 0), (4, "2", 1), (4, "0, 3", 2), (1, "0,1", 1)],
)
def test_gpus_that_the_environment_hides_are_not_there(devices: int, visible: str | None, count: int) -> None:
    assert visible_gpus(devices, visible) == count


def test_a_machine_has_the_gpus_that_its_devices_and_the_environment_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert read_machine(tmp_path, tmp_path).num_gpus == 3
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert read_machine(tmp_path, tmp_path).num_gpus == 1
