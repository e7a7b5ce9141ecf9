"""What a run needs of one machine, against what the machine has. `estimate` and `shortages` are pure.

The estimate is meant to refuse what cannot work, not to predict to the megabyte: fixed parts are rounded from
what the parts of a small run take (proportional set size), tensors are counted.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from streamrl.config.estimates import sizes as limits
from streamrl.config.estimates.gpus import gpus_for, gpus_on_run_node, largest_request, too_few
from streamrl.config.estimates.machine import LEAST_OPEN_FILES, Machine, read_machine
from streamrl.config.estimates.model_facts import ModelFacts
from streamrl.config.estimates.model_of import run_facts
from streamrl.config.estimates.sizes import human_bytes
from streamrl.config.known import MISSING_TORCHAO
from streamrl.config.problems import MACHINE, Problem
from streamrl.config.schema.run import Config
from streamrl.storage.address import local_path

_MIB = 2**20
_TORCH_PROCESS = 400 * _MIB  # a process with torch and Ray, its shared pages counted in part
_SERVER = 1800 * _MIB  # the processes of a vLLM server on a CPU, without its weights and its KV cache
_TRACKER = 250 * _MIB  # its package, and the program that some start beside it
_LIGHT_PROCESS = 100 * _MIB  # an actor without torch, or a scoring child
_SERVE_PROCESS = 200 * _MIB  # Ray Serve's controller, its proxy, or a replica of the gateway in it
_SERVE_OWN = 2  # the controller and the proxy of the run's node
_RAY = 700 * _MIB  # gcs, raylet, agents, and the owner
_NUM_LIGHT_ACTORS = 4  # queue, weight store, reward stage, controller
_LIVE_VERSIONS = 3  # of the weights in shared memory: served, being pulled, being published
_TRAINED_COPIES = 2  # weights and gradients
_MOMENTS = 2  # of Adam
_SMALL_STORE = 256 * _MIB  # of Ray's, which as files cost nothing: streamrl's data does not pass through it
_ACTIVATION_BYTES = 34  # per token, layer and hidden unit at 2 bytes: Korthikanti et al. 2022


class Estimate(Struct, frozen=True, kw_only=True):
    """Bytes that a run takes on one machine. `memory` is by the key that governs each part. Of `shared_memory`,
    `ray_store` is that of Ray's objects."""

    memory: dict[str, int]
    shared_memory: int
    disk: int
    ray_store: int = 0

    @property
    def total_memory(self) -> int:
        return sum(self.memory.values()) + self.shared_memory


def check_resources(config: Config) -> list[Problem]:
    """What this machine has too little of for `config`; for a cluster (`ray.address` set) only the disk is
    judged."""
    model, problems = run_facts(config)
    if problems:
        return problems
    return [*shortages(config, estimate(config, model), read_machine(Path(config.runs))), *_shared_folder(config)]


def check_growth(before: Config, after: Config) -> list[Problem]:
    """What this machine has too little of for a run that is `before` to go on as `after`. A cluster is not judged, and
    replicas on nodes of their own do not count."""
    if after.ray.address != "local":
        return []
    if after.rollout.resources is not None:
        before = msgspec.structs.replace(before, rollout=after.rollout)
    model, problems = run_facts(after)
    if problems:
        return problems
    more, machine = growth(estimate(before, model), estimate(after, model)), read_machine(Path(after.runs))
    return [*_memory_shortage(more, machine), *_gpu_growth(before, after, machine)]


def growth(before: Estimate, after: Estimate) -> Estimate:
    """What `after` needs beyond `before`."""
    memory = {name: size - before.memory.get(name, 0) for name, size in after.memory.items()}
    return Estimate(
        memory={name: size for name, size in memory.items() if size > 0},
        shared_memory=max(0, after.shared_memory - before.shared_memory),
        disk=max(0, after.disk - before.disk),
    )


def estimate(config: Config, model: ModelFacts | None) -> Estimate:
    """What `config` needs; tensors count as nothing when the model is unknown."""
    weights = limits.weight_bytes(config, model) if model else 0
    logs = limits.log_writers(config) * config.queue.segment_bytes + limits.waiting_bytes(config)
    rollouts = config.learner.steps * config.rollouts_per_step
    row = limits.row_bytes(limits.longest_row(config, limits.longest_prompt(config)))
    rows = min(config.queue.byte_budget, rollouts * row)
    read_by_servers = config.rollout.replicas if config.rollout.is_server else 0
    copies = config.queue.fetched_bytes if config.rollout.resources is not None else 0
    one = limits.checkpoint_bytes(config, model) if model else 0
    checkpoints = (config.checkpoint.keep + 1) * one
    return Estimate(
        memory=_memory(config, model, weights),
        shared_memory=_versions(config, model) + read_by_servers * weights + config.ray.object_store_bytes,
        disk=logs + rows + copies + checkpoints + weights + config.queue.min_free_bytes,
        ray_store=config.ray.object_store_bytes,
    )


def store_lies_in_files(store_bytes: int, shared_memory_bytes: int) -> bool:
    """Whether Ray's objects are kept beside the run's sockets and not in /dev/shm: a small store, where half of that or
    more would be gone. A container has 64 MiB of it."""
    return store_bytes <= _SMALL_STORE and shared_memory_bytes < 2 * store_bytes


def _versions(config: Config, model: ModelFacts | None) -> int:
    """In shared memory, one that a client downloads among them. Where adapters are published their base lies there too,
    and beside that of a learner that was replaced for a while."""
    if model is None:
        return 0
    live = _LIVE_VERSIONS + config.gateway.enabled
    return live * limits.version_bytes(config, model) + 2 * limits.base_bytes(config, model)


def _memory(config: Config, model: ModelFacts | None, weights: int) -> dict[str, int]:
    replicas, ranks = config.rollout.replicas, config.learner.num_workers
    memory = {"ray": _RAY + _NUM_LIGHT_ACTORS * _LIGHT_PROCESS}
    memory["reward.workers"] = config.reward.workers * _LIGHT_PROCESS
    memory["rollout.replicas"] = replicas * _TORCH_PROCESS
    memory["learner.num_workers"] = ranks * _TORCH_PROCESS
    memory |= _gateways(config)
    if trackers := config.observe.all_trackers:
        memory["observe.trackers"] = len(trackers) * _TRACKER
    if config.reward.model.path is not None:
        own = (model.reward_parameters or 0) * limits.DTYPE_BYTES["float32"] if model else 0
        memory["reward.workers"] += config.reward.workers * (_TORCH_PROCESS + own)
    if model is None:
        return memory
    if config.learner.device == "cpu":
        memory["learner.micro_batch_tokens"] = ranks * _activations(config, model)
        # Copies that are not trained: the base of adapters, and the reference of the divergence.
        frozen = limits.base_bytes(config, model) + (weights if config.learner.algorithm.has_reference else 0)
        memory["learner.num_workers"] += _trained(config, model) + frozen
    # The snapshot that a checkpoint is written from while the next steps run.
    memory["learner.num_workers"] += limits.checkpoint_bytes(config, model)
    # What a replica makes of adapters and their base, until its engine has copied it.
    memory["rollout.replicas"] += replicas * limits.base_bytes(config, model)
    if config.rollout.device == "cpu" and config.rollout.engine != "scripted":
        memory["rollout.replicas"] += replicas * 2 * weights  # the model and the engine's fused copy
        memory["rollout.kv_bytes"] = replicas * _kv_cache(config, model)
    if config.rollout.device == "cpu" and _starts_servers(config):
        # A server packs its weights, and takes all of its KV cache at once.
        memory["rollout.engine"] = replicas * (_SERVER + 2 * weights + config.rollout.kv_bytes)
    return memory


def _gateways(config: Config) -> dict[str, int]:
    """The gateway's own process, and those of Ray Serve, whose autoscaler asks nobody."""
    gateway = config.gateway
    memory = {"gateway.enabled": _LIGHT_PROCESS} if gateway.enabled else {}
    if gateway.enabled and gateway.serve.enabled:
        replicas = gateway.serve.max_replicas or gateway.serve.replicas
        memory["gateway.serve.replicas"] = (_SERVE_OWN + replicas) * _SERVE_PROCESS
    return memory


def _trained(config: Config, model: ModelFacts) -> int:
    """Weights, gradients and moments of what is trained."""
    auxiliary = limits.auxiliary_parameters(config, model) * 4
    policy_moments = _MOMENTS * limits.moment_share(config, model) * limits.version_bytes(config, model)
    auxiliary_moments = _MOMENTS * limits.auxiliary_moment_share(config, model) * auxiliary
    return _TRAINED_COPIES * (limits.version_bytes(config, model) + auxiliary) + round(
        policy_moments + auxiliary_moments
    )


def _starts_servers(config: Config) -> bool:
    return config.rollout.is_server and config.rollout.server.endpoint is None


def _kv_cache(config: Config, model: ModelFacts) -> int:
    request = limits.kv_request_bytes(config, model, limits.longest_prompt(config))
    return min(config.rollout.kv_bytes, config.rollout.slots * request)


def _activations(config: Config, model: ModelFacts) -> int:
    row = limits.longest_row(config, limits.longest_prompt(config))
    tokens = min(config.learner.micro_batch_tokens, config.rollouts_per_step * row) // config.learner.sequence_parallel
    dtype = limits.DTYPE_BYTES[config.model.dtype]
    return tokens * model.num_layers * model.hidden_size * _ACTIVATION_BYTES * dtype // 2


def shortages(config: Config, needed: Estimate, machine: Machine) -> list[Problem]:
    """Where `machine` has less than `needed`."""
    problems = [*_runs_folder(config, needed, machine), *_packages(config, machine)]
    if config.ray.address == "local":
        problems += [*_memory_shortage(needed, machine), *_gpu_shortage(config, machine)]
        problems += [*_loopback(machine), *_process_limits(needed, machine)]
    return problems


def _runs_folder(config: Config, needed: Estimate, machine: Machine) -> Iterator[Problem]:
    if machine.runs_writable is None:
        yield _problem("runs", f"a file stands in the way of this folder: {config.runs}; name another")
    elif not machine.runs_writable:
        yield _problem("runs", f"no right to write in {config.runs}; name another")
    if needed.disk > machine.disk_bytes:
        what = f"{_against(needed.disk, machine.disk_bytes)} free on the disk of {config.runs}"
        yield _problem(
            "runs", f"{what}; free some, name another folder, or lower queue.segment_bytes or checkpoint.keep"
        )


def _shared_folder(config: Config) -> Iterator[Problem]:
    folder = None if config.weights.folder is None else local_path(config.weights.folder)
    if folder is not None and not (os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)):
        what = "no folder in which this user may write; make it, on a disk that all nodes see, or name another"
        yield Problem(key="weights.folder", what=f"{folder}: {what}", file=MACHINE)


def _memory_shortage(needed: Estimate, machine: Machine) -> Iterator[Problem]:
    if needed.total_memory > machine.memory_bytes:
        key = max(needed.memory, key=lambda name: needed.memory[name], default="ray.object_store_bytes")
        parts = ", ".join(f"{name} {human_bytes(size)}" for name, size in needed.memory.items())
        what = f"{_against(needed.total_memory, machine.memory_bytes)} of memory free"
        yield _problem(key, f"{what}; lower the largest part: {parts}")
    in_files = store_lies_in_files(needed.ray_store, machine.shared_memory_bytes)
    shared = needed.shared_memory - (needed.ray_store if in_files else 0)
    if shared > machine.shared_memory_bytes:
        what = f"{_against(shared, machine.shared_memory_bytes)} free in /dev/shm"
        way_out = "enlarge it (docker run --shm-size), or lower this key"
        yield _problem("ray.object_store_bytes", f"{what}; {way_out}")


def _gpu_shortage(config: Config, machine: Machine) -> Iterator[Problem]:
    demands = gpus_on_run_node(config)
    if why := too_few(demands, machine.num_gpus):
        yield _problem(largest_request(demands), why)
    elif not machine.torch_has_cuda:
        for demand in demands:
            yield _problem(demand.key, 'the installed torch is a CPU build; install a CUDA build, or set "cpu"')


def _loopback(machine: Machine) -> Iterator[Problem]:
    if machine.loopback_fault:
        what = f"127.0.0.1 does not answer ({machine.loopback_fault}), and all parts of a run talk over it"
        yield _problem("ray.address", f"{what}; bring the loopback interface up (ip link set lo up)")


def _process_limits(needed: Estimate, machine: Machine) -> Iterator[Problem]:
    if machine.open_files < LEAST_OPEN_FILES:
        what = f"a process may open {machine.open_files} files, and those of Ray want {LEAST_OPEN_FILES}"
        yield _problem("ray.address", f"{what}; raise the limit (ulimit -n)")
    if needed.shared_memory > machine.file_bytes:
        sizes = f"{human_bytes(needed.shared_memory)}, and a process may write {human_bytes(machine.file_bytes)}"
        what = f"the run writes a file in /dev/shm of about {sizes}; raise the limit (ulimit -f), or lower this key"
        yield _problem("ray.object_store_bytes", what)


def _gpu_growth(before: Config, after: Config, machine: Machine) -> Iterator[Problem]:
    """Those that the run has are taken, so where it asks for more all must be there."""
    had, wanted = (gpus_on_run_node(config) for config in (before, after))
    asks_more = gpus_for(wanted) > gpus_for(had)
    if asks_more and (why := too_few(wanted, machine.num_gpus)):
        yield _problem(largest_request(wanted), why)


def _packages(config: Config, machine: Machine) -> Iterator[Problem]:
    if config.learner.lora.rank and not machine.has_peft:
        what = "the package peft is not installed; pip install 'peft==0.21.*'"
        yield _problem("learner.lora.rank", f"{what}, or set 0, which trains all weights")
    if not machine.has_torchao:
        for name, optimizer in limits.optimizers(config).items():
            if optimizer.kind == "adamw_8bit":
                yield _problem(f"{name}.kind", f"the package {MISSING_TORCHAO}")


def _against(needed: int, has: int) -> str:
    return f"the run needs about {human_bytes(needed)}, and there is {human_bytes(has)}"


def _problem(key: str, what: str) -> Problem:
    return Problem(key=key, what=what, file=MACHINE)
