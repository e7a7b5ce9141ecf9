"""No dead knobs: for every key of the configuration, a value and another one make the real code do something else.

`KEYS` is one line for each key: a probe, which runs the code that consumes the key and returns what it saw, and two
values under which it must see different things; then what else must be set for the key to act.
"""

import asyncio
import gc
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import torch
from support.data.probe_data import prompts_of_data
from support.environments import probe_environment as environment
from support.gateway import probe_gateway as gateway
from support.kernels import NEEDS_KERNELS
from support.learner import probe_learner as learner
from support.rewards import probe_reward_model as scores
from support.runs import probe_autoscaling as autoscaling
from support.runs import probe_parts as parts
from support.sandbox import probe_sandbox as sandbox

from streamrl.config import Config
from streamrl.config.estimates.gpus import gpus_of_a_rank, gpus_of_a_replica, node_demand
from streamrl.config.estimates.machine import Machine
from streamrl.config.estimates.model_of import model_facts
from streamrl.config.estimates.resources import estimate, shortages
from streamrl.config.schema.run import ModelConfig
from streamrl.config.schema.table import Table
from streamrl.engines.build import build_engine
from streamrl.engines.server.process.place import engine_python
from streamrl.engines.server.programs import server_command
from streamrl.errors import StreamRLError
from streamrl.learner.model.execution import offload_policy
from streamrl.learner.model.fused_layers import ops_for
from streamrl.models.load import prepare_model_folder
from streamrl.scheduling.off_policy_guard import PATIENCE, ShareGuard
from streamrl.scheduling.placement import Supply
from streamrl.services.actors.step_schedule import checkpoint_due, evaluation_due, target_reached
from streamrl.services.controller.supply import Placer
from streamrl.services.controller.trackers import finish_limit_s
from streamrl.services.launch.claim import claim
from streamrl.services.launch.ray_session import local_options
from streamrl.services.launch.start import owner_grace_s
from streamrl.services.learner.step_plan import num_shares
from streamrl.services.queue.actor import queue_settings
from streamrl.services.queue.segments import fetch_plan
from streamrl.services.run.folder import RunFolder
from streamrl.services.run.layout import model_folder
from streamrl.services.storage.mirror import CheckpointMirror
from streamrl.services.storage.orders import Order
from streamrl.services.weights.transports import RunNode, make_sender, make_transport
from streamrl.tasks.resolve import resolve_task
from streamrl.types import FrameRef
from streamrl.weights.transport.shelf import VersionShelf

MODULE = '''
"""A task of twenty prompts and some rewards, for the probes."""

import mmap
import threading

from streamrl.tasks.base import Prompt


class Small:
    name, num_train, num_held_out = "small", 40, 6

    def __init__(self, held_out):
        pass

    def train(self, index):
        return Prompt(f"p{index}", f"{index % 10}+{index // 10}=", '{"answer":"1"}')

    def held_out(self, index):
        return Prompt(f"h{index}", f"{index}*2=", '{"answer":"1"}')

    def demonstration(self, prompt):
        return "1"

    def fingerprint(self):
        return "small"


def most(completion, **_):
    return 0.75


def batch(completions, **_):
    return [float(len(completions))] * len(completions)


def slow(completion, prompt, **_):
    threading.Event().wait(float(prompt == "0"))
    return 1.0


def large(completion, **_):
    mmap.mmap(-1, 700 * 2**20).close()
    return 1.0
'''

SMALL = {"task.name": "probe_task:Small"}
SCRIPTED = {"rollout.engine": "scripted"}
DRIFTING = {**SCRIPTED, "rollout.replicas": 2, "rollout.scripted.logprob_bias": 0.5}
ENDLESS = {
    **SCRIPTED,
    "rollout.scripted.latency_steps": 3 * 10**6,
    "rollout.journal_every_tokens": 0,
    "rollout.sampling.max_new_tokens": 10**7,
}
SHORT_WARMUP = {
    **SMALL,
    "warmup.max_steps": 4,
    "warmup.eval_every": 2,
    "warmup.target_score": 1.0,
    "warmup.batch_size": 8,
    "warmup.lr": 1e-5,
    "rollout.sampling.max_new_tokens": 2,
}
PPO = {"learner.algorithm.proximal": "rollout", "learner.optimizer.lr": 1e-3}
NO_RATIO = {"learner.algorithm.proximal": "recompute"}
SAPO = {**PPO, "learner.algorithm.loss": "sapo"}
DPPO = {**PPO, "learner.algorithm.loss": "dppo", "learner.algorithm.clip_low": 0.1, "learner.algorithm.clip_high": 0.01}
CLIP_COV = {**PPO, "learner.algorithm.loss": "clip_cov", "learner.algorithm.cov_low": 0.0}
KL_COV = {**PPO, "learner.algorithm.loss": "kl_cov"}
REJECTION = {**NO_RATIO, "learner.algorithm.rejection.measure": "ratio"}
RATE = {"learner.optimizer.lr": 1e-3, "learner.optimizer.warmup_steps": 1, "learner.steps": 3}
GAE = {
    **RATE,
    "learner.algorithm.advantage": "gae",
    "learner.critic.optimizer.lr": 1e-3,
    "learner.critic.optimizer.warmup_steps": 1,
}
PRIME = {
    **RATE,
    "learner.algorithm.advantage": "prime",
    "learner.prime.optimizer.lr": 1e-3,
    "learner.prime.optimizer.warmup_steps": 1,
}
SHORT = {"rollout.sampling.max_new_tokens": 5}
KL = {**RATE, "learner.algorithm.kl_coef": 1.0}
REFERENCE = "learner.algorithm.reference.kind"
PLACED = {"ray.address": "10.0.0.1:6379", "rollout.resources": {"rollout-node": 1.0}}
RANKS = {"ray.address": "10.0.0.1:6379", "learner.device": "cuda", "learner.num_workers": 2}
SCORES = {"reward.function": "reward_model", "reward.model.path": "one"}
SCALED = {"rollout.autoscaling.max_replicas": 4, "rollout.autoscaling.downscale_delay_s": 30.0}
NEVER = 1e-6
BARELY = 2e-6

Probe = Callable[[Config, Path], Any]


class Key(NamedTuple):
    """probe(config, folder) sees something else under `first` than under `second`, all else being `given`."""

    probe: Probe
    first: Any
    second: Any
    given: dict[str, Any] = {}  # noqa: RUF012 - never changed


def run_folder(config: Config, folder: Path) -> str:
    return str(claim(placed(config, folder)).run.path.relative_to(folder))


def placed(config: Config, folder: Path) -> Config:
    """The same run with its folders below `folder`."""
    return msgspec.structs.replace(config, runs=str(folder / config.runs))


def made_model(config: Config, folder: Path) -> list[str]:
    """The files of a model made from nothing, or why there is none."""
    try:
        prepare_model_folder(config.model, config.seed, folder)
    except StreamRLError as error:
        return [str(error)]
    return sorted(path.name for path in folder.iterdir())


def loaded_from(config: Config, folder: Path) -> str:
    return str(model_folder(folder, config)).removeprefix(str(folder))


def settings_of(config: Config, folder: Path) -> Any:
    return queue_settings(config, resolve_task(config.task.name, config.task.held_out), 7)


def needed(config: Config, folder: Path) -> Any:
    facts, _ = model_facts(config.model)
    return estimate(config, facts)


def too_little(config: Config, folder: Path) -> int:
    """How much a machine with nothing lacks."""
    empty = Machine(
        memory_bytes=0,
        shared_memory_bytes=0,
        disk_bytes=0,
        runs_writable=True,
        num_gpus=0,
        torch_has_cuda=False,
        has_peft=True,
        has_torchao=True,
    )
    return len(shortages(config, needed(config, folder), empty))


def ray_options(config: Config, folder: Path) -> dict[str, Any]:
    return local_options(config.ray, Path("/runtime"), 2**40)


def options_of_a_replica(config: Config, folder: Path) -> Any:
    """Of the second one, where two nodes have room for it."""
    nodes = [Supply(node, "host", {"rollout-node": 2.0}, {"rollout-node": 2.0}) for node in ("a" * 56, "b" * 56)]
    placer = Placer(config, lambda: nodes)
    placer.options()
    options = placer.options()
    strategy = options.get("scheduling_strategy")
    return {**options, "scheduling_strategy": getattr(strategy, "node_id", strategy)}


def copies_kept(config: Config, folder: Path) -> int:
    """Bytes of the copies that are kept of two segments of 1 KiB, of which nobody reads the first any more."""
    plan = fetch_plan(config)
    for number in range(2):
        (fetch,) = plan.want("learner", [FrameRef(f"{number}.arrow", 0, 2**10, 1, 0, 0)]).begin
        plan.arrived(fetch)
    plan.evict()
    return plan.num_bytes


def way_to_nodes(config: Config, folder: Path) -> str:
    return type(make_transport(config, RunNode(parts.Handle(), "node", 1.0))).__name__


def laid_out_in(config: Config, folder: Path) -> list[str]:
    """Where a sender makes the folder for what other nodes read."""
    place = folder / str(config.weights.folder)
    place.mkdir()
    weights = msgspec.structs.replace(config.weights, folder=str(place))
    made = make_sender(msgspec.structs.replace(config, weights=weights), VersionShelf("run", b"", folder), "own")
    found = [str(path.relative_to(folder)) for path in folder.glob("*/*")]
    asyncio.run(made.close())
    return found


def spoken(config: Config, folder: Path) -> str:
    """What a node is told that it will be spoken to in."""

    async def meet() -> str:
        sender: Any = make_sender(config, VersionShelf("run", b"", folder), "own")
        try:
            meeting = await sender.meet("node")
        except StreamRLError as error:
            return str(error)
        await sender.close()
        return meeting.place.backend

    return asyncio.run(meet())


def upload_asked(config: Config, folder: Path) -> tuple[str, float]:
    """Where a checkpoint is put that was committed, and how long that may take."""
    asked: list[tuple[str, float]] = []

    async def ask(order: Order, limit_s: float) -> dict[str, Any]:
        asked.append((order.address, limit_s))
        return {"step": 1, "bytes": 1}

    async def commit() -> None:
        mirror = CheckpointMirror(RunFolder.create(folder, "run"), config, print, ask)
        mirror.start()
        mirror.committed(1)
        await mirror.finish(60)

    asyncio.run(commit())
    (one,) = asked
    return one


def time_to_stop(config: Config, folder: Path) -> float:
    return owner_grace_s(config.deadlines.stop_s)


def steps_with(due: Callable[[Config, int], bool]) -> Probe:
    return lambda config, folder: [step for step in range(12) if due(config, step)]


FAR = {"correction/effective_share": 0.4, "mismatch/kl": 0.4}


def warned(config: Config, folder: Path) -> str:
    """What a guard says of a step that is far."""
    return ShareGuard(config.learner.algorithm).check(3, FAR)


def paused(config: Config, folder: Path) -> str:
    """What a guard says after some of them."""
    guard = ShareGuard(config.learner.algorithm)
    for step in range(PATIENCE):
        guard.check(step, FAR)
    return guard.pause


def gpus_asked(config: Config, folder: Path) -> tuple[float, float]:
    """What a rank and a replica ask Ray for."""
    return gpus_of_a_rank(config), gpus_of_a_replica(config)


def gpus_of_a_node(config: Config, folder: Path) -> dict[str, float]:
    """What the learner's ranks ask of each node."""
    return node_demand(config)


def device_of(config: Config, folder: Path) -> str:
    """What the learner says on a machine without CUDA, or with it."""
    try:
        return str(learner.learn(config, folder))
    except (StreamRLError, AssertionError, RuntimeError) as error:
        return type(error).__name__


def learned_by(config: Config, folder: Path) -> Any:
    """What an optimizer leaves that is of a package."""
    pytest.importorskip("torchao", reason="pip install -e '.[low-bit]'")
    return learner.learn(config, folder)


def shares_of_a_step(config: Config, folder: Path) -> int:
    return num_shares(config)


def held_by(config: Config, folder: Path) -> str:
    """What FSDP2 is told of where parameters lie that a GPU computes with."""
    return type(offload_policy(config.learner.execution, torch.device("cuda"))).__name__


def layer_kernels(config: Config, folder: Path) -> bool:
    """Whether a GPU would have kernels of ours for its layers."""
    pytest.importorskip("triton", reason="make test-kernels")
    return ops_for(config.learner.execution, torch.device("cuda")) is not None


def server_start(config: Config, folder: Path) -> list[str]:
    """The command line of the server, and what it is told."""
    listens_at, model = Path("/private/socket"), Path(config.model.path or "")
    command = server_command(config, engine_python(config, folder), model, 64, listens_at)
    return [*command.argv, str(command.env)]


def server_python(config: Config, folder: Path) -> str:
    """The Python that a server would run under."""
    (folder / "one").touch()
    (folder / "other").touch()
    return engine_python(config, folder).name


def unanswered_server(config: Config, folder: Path) -> str:
    """What is said of a server that is not there."""
    try:
        build_engine(config, Path(config.model.path or ""), 64)
    except StreamRLError as error:
        return str(error)
    raise AssertionError("somebody answers there")


def engine_device(config: Config, folder: Path) -> str:
    try:
        return str(parts.generated(config, folder)[0])
    except StreamRLError as error:
        return str(error)


SERVER = {"rollout.engine": "vllm", "rollout.server.python": sys.executable}
NOT_THERE = {"rollout.engine": "vllm", "deadlines.start_s": NEVER}

CODE = {"reward.function": "code", "reward.timeout_s": 100.0, "sandbox.level": "namespaces"}
REMOTE = {"reward.function": "code", "sandbox.level": "remote"}
GAMES = "support.environments.games"
ECHO = {"environment.name": f"{GAMES}:Echo", "rollout.sampling.max_new_tokens": 60}

KEYS: dict[str, Key] = {
    "name": Key(run_folder, "one", "two"),
    "runs": Key(run_folder, "here", "there"),
    "seed": Key(parts.taken_groups, 0, 1),
    "task.name": Key(parts.taken_groups, "arithmetic", "probe_task:Small"),
    "task.held_out": Key(parts.taken_groups, 0.1, 0.5),
    "data.train": Key(prompts_of_data, "few", "many"),
    "data.weights": Key(prompts_of_data, (1.0, 9.0), (9.0, 1.0), {"data.train": ("few", "many")}),
    "data.eval": Key(prompts_of_data, "few", {"named": "few"}, {"data.train": "many"}),
    "data.held_out": Key(prompts_of_data, 0.1, 0.5, {"data.train": "many"}),
    "data.held_out_seed": Key(prompts_of_data, 0, 1, {"data.train": "many", "data.held_out": 0.5}),
    "data.columns": Key(prompts_of_data, None, {"prompt": "other"}, {"data.train": "few"}),
    "data.as_chat": Key(prompts_of_data, False, True, {"data.train": "few"}),
    "data.system": Key(prompts_of_data, None, "Be short.", {"data.train": "few"}),
    "data.chat_template_kwargs": Key(
        prompts_of_data, None, {"enable_thinking": False}, {"data.train": "few", "data.as_chat": True}
    ),
    "data.max_prompt_tokens": Key(prompts_of_data, 100, 1000, {"data.train": "long"}),
    "data.too_long": Key(prompts_of_data, "error", "skip", {"data.train": "long", "data.max_prompt_tokens": 100}),
    "data.max_bad_rows": Key(prompts_of_data, 1, 2, {"data.train": "broken"}),
    "data.curriculum.low": Key(parts.turns, None, 0.5),
    "data.curriculum.high": Key(parts.turns, None, 0.5),
    "data.curriculum.rest": Key(parts.turns, 1, 2, {"data.curriculum.high": 0.5}),
    "data.cache": Key(prompts_of_data, "here", "there", {"data.train": "few"}),
    "model.preset": Key(made_model, "tiny-qwen3", None, {"model.path": None}),
    "model.path": Key(loaded_from, "/a", "/b"),
    "model.dtype": Key(parts.weights_of, "float32", "bfloat16"),
    "warmup.max_steps": Key(learner.warm, 2, 4, SHORT_WARMUP),
    "warmup.batch_size": Key(learner.warm, 8, 16, SHORT_WARMUP),
    "warmup.lr": Key(learner.warm, 1e-3, 1e-2, SHORT_WARMUP),
    "warmup.min_lr_ratio": Key(learner.warm, 0.1, 1.0, SHORT_WARMUP),
    "warmup.threads": Key(learner.warm, 1, 2, SHORT_WARMUP),
    "warmup.target_score": Key(learner.warm, 0.5, 1.0, {**SHORT_WARMUP, "reward.function": "probe_task:most"}),
    "warmup.eval_every": Key(learner.warm, 1, 2, SHORT_WARMUP),
    "rollout.replicas": Key(parts.started_parts, 1, 3),
    "rollout.resources": Key(options_of_a_replica, None, {"rollout-node": 1.0}),
    "rollout.placement": Key(options_of_a_replica, "spread", "pack", PLACED),
    "rollout.engine": Key(parts.generated, "torch", "scripted"),
    "rollout.group_size": Key(parts.taken_groups, 4, 8),
    "rollout.slots": Key(parts.generated, 4, 8),
    "rollout.update_mode": Key(parts.taken_up, "keep", "drain", {**ENDLESS, "deadlines.update_s": 0.2}),
    "rollout.deterministic": Key(parts.arithmetic, True, False),
    "rollout.gpu_share": Key(gpus_asked, 1.0, 0.5, {"rollout.device": "cuda", "rollout.deterministic": False}),
    "rollout.device": Key(engine_device, "cpu", "cuda", {"rollout.deterministic": False}),
    "rollout.threads": Key(parts.generated, 1, 2, {"rollout.deterministic": False}),
    "rollout.kv_bytes": Key(parts.generated, 2**18, 2**19),
    "rollout.journal_every_tokens": Key(parts.first_piece, 8, 16, ENDLESS),
    "rollout.quarantine_after": Key(settings_of, 2, 3),
    "rollout.autoscaling.min_replicas": Key(autoscaling.shrunk, 1, 2, SCALED),
    "rollout.autoscaling.max_replicas": Key(autoscaling.grown, 3, 4),
    "rollout.autoscaling.target_ongoing_requests": Key(autoscaling.grown, 2.0, 4.0, SCALED),
    "rollout.autoscaling.upscale_delay_s": Key(autoscaling.grown, 10.0, 20.0, SCALED),
    "rollout.autoscaling.downscale_delay_s": Key(autoscaling.shrunk, 10.0, 20.0, SCALED),
    "rollout.sampling.temperature": Key(parts.generated, 0.5, 1.0),
    "rollout.sampling.top_p": Key(parts.generated, 1.0, 0.2),
    "rollout.sampling.top_k": Key(parts.generated, 0, 2),
    "rollout.sampling.min_p": Key(parts.generated, 0.0, 0.9),
    "rollout.sampling.max_new_tokens": Key(parts.generated, 4, 8),
    "rollout.server.python": Key(server_python, "one", "other", {"rollout.engine": "vllm"}),
    "rollout.server.endpoint": Key(unanswered_server, "http://127.0.0.1:1", "http://127.0.0.1:2", NOT_THERE),
    "rollout.server.tensor_parallel": Key(server_start, 1, 2, SERVER),
    "rollout.server.quantization": Key(server_start, None, "fp8", SERVER),
    "rollout.server.args": Key(server_start, (), ("--swap-space", "1"), SERVER),
    "rollout.scripted.latency_steps": Key(parts.generated, 2, 6, SCRIPTED),
    "rollout.scripted.step_s": Key(parts.tokens_of_two_steps, 0.0, 3600.0, SCRIPTED),
    "rollout.scripted.heavy_tail": Key(parts.generated, 0.0, 1.0, SCRIPTED),
    "rollout.scripted.error_rate": Key(parts.generated, 0.0, 1.0, SCRIPTED),
    "rollout.scripted.nan_rate": Key(parts.generated, 0.0, 1.0, SCRIPTED),
    "rollout.scripted.hang_rate": Key(parts.ended_in_time, 0.0, 1.0, SCRIPTED),
    "rollout.scripted.logprob_bias": Key(parts.generated, 0.0, 0.5, SCRIPTED),
    "rollout.scripted.biased_replica": Key(parts.generated, 0, 1, DRIFTING),
    "environment.name": Key(environment.opening, f"{GAMES}:Echo", f"{GAMES}:Plain"),
    "environment.options": Key(environment.opening, None, {"opening": "hello"}, ECHO),
    "environment.tools": Key(
        environment.opening, ("calculator",), (f"{GAMES}:bad_step",), {"environment.name": "tools"}
    ),
    "environment.max_turns": Key(environment.played, 1, 5, ECHO),
    "environment.max_tool_calls": Key(environment.played, None, 1, ECHO),
    "environment.max_tokens": Key(environment.played, 70, 2048, ECHO),
    "environment.step_timeout_s": Key(
        environment.played,
        0.01,
        30.0,
        ECHO | {"environment.name": f"{GAMES}:Bad", "environment.options": {"how": "waits"}},
    ),
    "environment.episode_timeout_s": Key(environment.played, 1e-6, 100.0, ECHO),
    "environment.retries": Key(
        environment.played,
        0,
        2,
        ECHO | {"environment.name": f"{GAMES}:Bad", "environment.options": {"how": "raises"}},
    ),
    "environment.truncated_reward": Key(
        environment.played,
        0.0,
        -1.0,
        {"environment.name": f"{GAMES}:Plain", "rollout.sampling.max_new_tokens": 1},
    ),
    "environment.workers": Key(environment.children, 1, 2, ECHO),
    "environment.concurrency": Key(environment.crowd, 1, 64, {"environment.name": f"{GAMES}:Crowd"}),
    "environment.memory_bytes": Key(
        environment.played,
        2**29,
        2**33,
        ECHO
        | {
            "environment.name": f"{GAMES}:Bad",
            "environment.options": {"how": "is large"},
            "environment.retries": 0,
        },
    ),
    "reward.function": Key(parts.reward_scores, "exact_match", "probe_task:batch"),
    "reward.functions": Key(
        parts.reward_scores, {"probe_task:most": 1.0}, {"probe_task:most": 2.0}, {"reward.function": "exact_match"}
    ),
    "reward.options": Key(
        parts.reward_scores,
        None,
        {"length": {"target": 9}},
        {"reward.function": "length"},
    ),
    "reward.workers": Key(parts.reward_scores, 1, 2),
    "reward.batch_size": Key(parts.reward_scores, 4, 8, {"reward.function": "probe_task:batch"}),
    "sandbox.level": Key(sandbox.level, "namespaces", "bubblewrap", {"reward.function": "code"}),
    "sandbox.url": Key(sandbox.level, "http://127.0.0.1:1", "http://127.0.0.1:2", REMOTE),
    "sandbox.python": Key(sandbox.ended, None, sys.executable, CODE),
    "sandbox.time_s": Key(sandbox.ended, 0.5, 60.0, CODE),
    "sandbox.memory_bytes": Key(sandbox.ended, 2**27, 2**29, CODE),
    "sandbox.processes": Key(sandbox.ended, 2, 16, CODE),
    "sandbox.output_bytes": Key(sandbox.ended, 10, 1000, CODE),
    "sandbox.disk_bytes": Key(sandbox.ended, 2**20, 2**23, CODE),
    "reward.timeout_s": Key(parts.reward_scores, 0.2, 60.0, {"reward.function": "probe_task:slow"}),
    "reward.memory_bytes": Key(parts.reward_scores, 2**29, 2**31, {"reward.function": "probe_task:large"}),
    "reward.max_failed": Key(parts.too_many_failures, 0.1, 0.5),
    "reward.model.path": Key(scores.scored_by_the_stage, "one", "other", SCORES),
    "reward.model.weight": Key(scores.scored, 1.0, 2.0, SCORES),
    "reward.model.max_tokens": Key(scores.scored, 6, 64, SCORES),
    "reward.model.rows_at_once": Key(scores.forwards, 2, 3, SCORES),
    "learner.steps": Key(parts.taken_groups, 1, 2),
    "learner.num_workers": Key(parts.started_parts, 1, 2),
    "learner.nodes": Key(gpus_of_a_node, 1, 2, RANKS),
    "learner.tensor_parallel": Key(shares_of_a_step, 1, 2, {"learner.num_workers": 2}),
    "learner.sequence_parallel": Key(shares_of_a_step, 1, 2, {"learner.num_workers": 2}),
    "learner.shares": Key(learner.learn, None, 2),
    "learner.mini_batches": Key(learner.learn, 1, 2, PPO),
    "learner.ppo_epochs": Key(learner.learn, 1, 2, PPO),
    "learner.groups_per_step": Key(parts.taken_groups, 8, 9),
    "learner.max_staleness": Key(parts.taken_groups, 0, 2),
    "learner.lead": Key(parts.taken_groups, None, 1.0),
    "learner.late": Key(settings_of, "wait", "drop"),
    "learner.device": Key(device_of, "cpu", "cuda"),
    "learner.gpu_share": Key(gpus_asked, 1.0, 0.5, {"learner.device": "cuda"}),
    "learner.threads": Key(learner.threads_of, 1, 2),
    "learner.micro_batch_tokens": Key(learner.learn, 32, 4096),
    "learner.router_replay": Key(learner.replayed, False, True),
    "learner.router_aux_loss_coef": Key(learner.balanced, 0.0, 1.0, RATE),
    "learner.optimizer.kind": Key(learned_by, "adamw", "adamw_8bit", RATE),
    "learner.optimizer.lr": Key(learner.learn, 1e-4, 1e-3),
    "learner.optimizer.betas": Key(learner.learn, (0.9, 0.95), (0.5, 0.95), RATE),
    "learner.optimizer.eps": Key(learner.learn, 1e-8, 1e-2, RATE),
    "learner.optimizer.weight_decay": Key(learner.learn, 0.0, 0.1, RATE),
    "learner.optimizer.max_grad_norm": Key(learner.learn, 1e-3, 1e3, {**RATE, "learner.optimizer.eps": 1e-2}),
    "learner.optimizer.warmup_steps": Key(learner.learn, 1, 3, {"learner.optimizer.lr": 1e-3}),
    "learner.optimizer.decay": Key(learner.learn, "constant", "linear", RATE),
    "learner.optimizer.min_lr_ratio": Key(learner.learn, 0.1, 0.5, RATE),
    "learner.algorithm.advantage": Key(learner.learn, "grpo", "rloo", RATE),
    "learner.algorithm.components": Key(
        learner.learn,
        {"correct": 1.0, "format": 1.0},
        {"correct": 1.0, "format": 3.0},
        {**RATE, "learner.algorithm.advantage": "gdpo"},
    ),
    "learner.algorithm.loss": Key(learner.learn, "ppo", "reinforce", NO_RATIO),
    "learner.algorithm.clip_low": Key(learner.learn, 0.2, 0.01, PPO),
    "learner.algorithm.clip_high": Key(learner.learn, 0.28, 0.01, PPO),
    "learner.algorithm.dual_clip": Key(learner.learn, None, 1.5, PPO),
    "learner.algorithm.sapo_tau_positive": Key(learner.learn, 1.0, 2.0, SAPO),
    "learner.algorithm.sapo_tau_negative": Key(learner.learn, 1.05, 2.0, SAPO),
    "learner.algorithm.divergence": Key(learner.learn, "tv", "kl", DPPO),
    "learner.algorithm.cov_share": Key(learner.learn, 2e-4, 0.5, CLIP_COV),
    "learner.algorithm.cov_low": Key(learner.learn, 0.0, 4.9, {**CLIP_COV, "learner.algorithm.cov_share": 1.0}),
    "learner.algorithm.cov_high": Key(learner.learn, 5.0, 1e-9, {**CLIP_COV, "learner.algorithm.cov_share": 1.0}),
    "learner.algorithm.cov_kl": Key(learner.learn, 0.0, 1.0, KL_COV),
    "learner.algorithm.proximal": Key(learner.learn, "rollout", "recompute"),
    "learner.algorithm.correction": Key(learner.learn, "none", "tis", NO_RATIO),
    "learner.algorithm.tis_cap": Key(learner.learn, 2.0, 0.1, NO_RATIO),
    "learner.algorithm.correction_level": Key(learner.learn, "token", "geometric", NO_RATIO),
    "learner.algorithm.correction_low": Key(
        learner.learn, 0.1, 0.9, {**NO_RATIO, "learner.algorithm.correction": "icepop"}
    ),
    "learner.algorithm.rejection.measure": Key(
        learner.learn, "none", "k2", {**NO_RATIO, "learner.algorithm.rejection.high": 0.1}
    ),
    "learner.algorithm.rejection.level": Key(
        learner.learn, "token", "geometric", {**REJECTION, "learner.algorithm.rejection.high": 1.0}
    ),
    "learner.algorithm.rejection.low": Key(learner.learn, None, 1.0, REJECTION),
    "learner.algorithm.rejection.high": Key(learner.learn, None, 1.0, REJECTION),
    "learner.algorithm.least_effective_share": Key(warned, 0.0, 0.5),
    "learner.algorithm.pause_effective_share": Key(paused, 0.2, 0.5, {"learner.algorithm.least_effective_share": 0.5}),
    "learner.algorithm.most_mismatch_kl": Key(warned, None, 0.3),
    "learner.algorithm.pause_mismatch_kl": Key(paused, 0.5, 0.3, {"learner.algorithm.most_mismatch_kl": 0.3}),
    "learner.algorithm.horizon": Key(
        learner.learn, 8, 16, {"learner.algorithm.aggregation": "seq_mean_token_sum_norm"}
    ),
    "learner.algorithm.entropy_coef": Key(learner.learn, 0.0, 0.1),
    "learner.algorithm.kl_coef": Key(learner.learn, 0.0, 1.0, RATE),
    "learner.algorithm.kl_estimator": Key(learner.learn, "k2", "k3", {**RATE, "learner.algorithm.kl_coef": 1.0}),
    "learner.algorithm.kl_in": Key(
        learner.learn,
        "loss",
        "reward",
        {**RATE, "learner.algorithm.kl_coef": 1.0, "learner.algorithm.kl_estimator": "k2"},
    ),
    "learner.algorithm.reference.kind": Key(learner.learn, "initial", "average", KL),
    "learner.algorithm.reference.path": Key(learner.other_reference, "one", "three", {**KL, REFERENCE: "path"}),
    "learner.algorithm.reference.every": Key(
        learner.learn, 1, 2, {**KL, REFERENCE: "average", "learner.algorithm.reference.decay": 0.5}
    ),
    "learner.algorithm.reference.decay": Key(learner.learn, 0.1, 0.5, {**KL, REFERENCE: "average"}),
    "learner.algorithm.aggregation": Key(learner.learn, "token_mean", "seq_mean_token_sum"),
    "learner.critic.path": Key(learner.first_values, "one", "other", GAE),
    "learner.critic.warmup_steps": Key(learner.learn, 0, 1, GAE),
    "learner.critic.value_clip": Key(learner.learn, None, 1e-3, {**GAE, "learner.ppo_epochs": 2}),
    "learner.critic.gamma": Key(learner.learn, 0.5, 1.0, GAE),
    "learner.critic.policy_lambda": Key(learner.learn, 0.5, 1.0, GAE),
    "learner.critic.length_alpha": Key(learner.learn, None, 0.3, GAE),
    "learner.critic.value_lambda": Key(learner.learn, 0.5, 1.0, GAE),
    "learner.critic.whiten": Key(learner.learn, True, False, GAE),
    "learner.critic.optimizer.kind": Key(learned_by, "adamw", "adamw_8bit", GAE),
    "learner.critic.optimizer.lr": Key(learner.learn, 1e-4, 1e-3, GAE),
    "learner.critic.optimizer.betas": Key(learner.learn, (0.9, 0.95), (0.5, 0.95), GAE),
    "learner.critic.optimizer.eps": Key(learner.learn, 1e-8, 1e-2, GAE),
    "learner.critic.optimizer.weight_decay": Key(learner.learn, 0.0, 0.5, GAE),
    "learner.critic.optimizer.max_grad_norm": Key(
        learner.learn, 1e-3, 1e3, {**GAE, "learner.critic.optimizer.eps": 1e-2}
    ),
    "learner.critic.optimizer.warmup_steps": Key(learner.learn, 1, 3, GAE),
    "learner.critic.optimizer.decay": Key(learner.learn, "constant", "linear", GAE),
    "learner.critic.optimizer.min_lr_ratio": Key(learner.learn, 0.1, 0.5, GAE),
    "learner.prime.beta": Key(learner.learn, 0.05, 0.5, PRIME),
    "learner.prime.process_coef": Key(learner.learn, 1.0, 3.0, PRIME),
    "learner.prime.outcome_coef": Key(learner.learn, 0.0, 1.0, PRIME),
    "learner.prime.gamma": Key(learner.learn, 0.5, 1.0, PRIME),
    "learner.prime.normalise": Key(learner.learn, False, True, PRIME),
    "learner.prime.whiten": Key(learner.learn, False, True, PRIME),
    "learner.prime.optimizer.kind": Key(learned_by, "adamw", "adamw_8bit", PRIME),
    "learner.prime.optimizer.lr": Key(learner.learn, 1e-4, 1e-3, PRIME),
    "learner.prime.optimizer.betas": Key(learner.learn, (0.9, 0.95), (0.5, 0.95), PRIME),
    "learner.prime.optimizer.eps": Key(learner.learn, 1e-8, 1e-2, PRIME),
    "learner.prime.optimizer.weight_decay": Key(learner.learn, 0.0, 0.5, PRIME),
    "learner.prime.optimizer.max_grad_norm": Key(
        learner.learn, 1e-3, 1e3, {**PRIME, "learner.prime.optimizer.eps": 1e-2}
    ),
    "learner.prime.optimizer.warmup_steps": Key(learner.learn, 1, 3, PRIME),
    "learner.prime.optimizer.decay": Key(learner.learn, "constant", "linear", PRIME),
    "learner.prime.optimizer.min_lr_ratio": Key(learner.learn, 0.1, 0.5, PRIME),
    "learner.overlong.buffer": Key(learner.learn, 0, 3, {**RATE, **SHORT}),
    "learner.overlong.penalty": Key(learner.learn, 1.0, 2.0, {**RATE, **SHORT, "learner.overlong.buffer": 3}),
    "learner.overlong.mask_truncated": Key(learner.learn, False, True, RATE),
    "learner.filter.zero_variance": Key(parts.kept_groups, False, True),
    "learner.filter.low": Key(parts.kept_groups, None, 0.5),
    "learner.filter.high": Key(parts.kept_groups, None, 0.5),
    "learner.filter.limit": Key(parts.kept_groups, 1, 2, {"learner.filter.low": 2.0}),
    "learner.execution.activation_checkpointing": Key(learner.layer_passes, False, True),
    "learner.execution.recompute_attention": Key(
        learner.keeps_attention, False, True, {"learner.execution.activation_checkpointing": True}
    ),
    "learner.execution.kernels": Key(layer_kernels, "auto", "torch"),
    "learner.execution.logits_bytes": Key(learner.logits_bytes, 2**20, 2**21),
    "learner.execution.compile": Key(learner.built_without_compiler, False, True),
    "learner.execution.offload": Key(held_by, False, True),
    "learner.execution.reduce_every_pack": Key(
        learner.gradients_kept_back, False, True, {"learner.micro_batch_tokens": 32}
    ),
    "learner.backend": Key(device_of, "fsdp", "megatron"),
    "learner.megatron.tensor_parallel": Key(learner.megatron_settings, 1, 2),
    "learner.megatron.pipeline_parallel": Key(learner.megatron_settings, 1, 2),
    "learner.megatron.virtual_pipeline": Key(learner.megatron_settings, 1, 2),
    "learner.megatron.context_parallel": Key(learner.megatron_settings, 1, 2),
    "learner.megatron.expert_parallel": Key(learner.megatron_settings, 1, 2),
    "learner.megatron.expert_tensor_parallel": Key(learner.megatron_settings, 1, 2),
    "learner.megatron.sequence_parallel": Key(learner.megatron_settings, False, True),
    "learner.megatron.distributed_optimizer": Key(learner.megatron_settings, False, True),
    "learner.megatron.recompute": Key(learner.megatron_settings, "none", "layers"),
    "learner.megatron.precision": Key(learner.megatron_settings, "float32", "bfloat16"),
    "learner.lora.rank": Key(learner.learn, 0, 2, RATE),
    "learner.lora.alpha": Key(learner.learn, 2.0, 16.0, {**RATE, "learner.lora.rank": 2}),
    "learner.lora.targets": Key(learner.learn, ("q_proj",), ("v_proj",), {**RATE, "learner.lora.rank": 2}),
    "checkpoint.every": Key(steps_with(checkpoint_due), 2, 5),
    "checkpoint.keep": Key(learner.learn, 1, 2),
    "checkpoint.folder": Key(upload_asked, "s3://bucket/here", "s3://bucket/there"),
    "checkpoint.byte_budget": Key(learner.kept_beside_damage, 23 * 10**6, 10**9),
    "eval.every": Key(steps_with(evaluation_due), 2, 5),
    "eval.max_items": Key(parts.held_out_answers, 3, 5, {**SCRIPTED, **SMALL}),
    "eval.samples": Key(parts.held_out_answers, 1, 2, {**SCRIPTED, **SMALL, "eval.temperature": 1.0}),
    "eval.temperature": Key(parts.held_out_ids, 0.0, 5.0, SMALL),
    "eval.target_score": Key(lambda config, folder: target_reached(config, 0.5), 0.4, 0.6),
    "queue.durability": Key(settings_of, "disk", "memory"),
    "queue.commit_interval_ms": Key(settings_of, 5.0, 50.0),
    "queue.segment_bytes": Key(parts.segment_size, 2**20, 2**21),
    "queue.byte_budget": Key(parts.taken_groups, 2**30, 2**18),
    "queue.fetched_bytes": Key(copies_kept, 1, 2**20),
    "queue.retain": Key(settings_of, "all", "covered"),
    "queue.disk_budget": Key(settings_of, 2**30, 2**31),
    "queue.min_free_bytes": Key(parts.pauses, 0, 2**62),
    "weights.between_nodes": Key(way_to_nodes, "object_store", "disk"),
    "weights.delta": Key(learner.deltas_made, True, False, {**PLACED, "learner.optimizer.lr": 0.0}),
    "weights.folder": Key(laid_out_in, "here", "there", {"weights.between_nodes": "disk"}),
    "weights.collective_backend": Key(spoken, "gloo", "nccl", {"weights.between_nodes": "collective"}),
    "weights.byte_budget": Key(learner.versions_that_fit, 4 * 10**6, 8 * 10**6),
    "deadlines.start_s": Key(parts.slow_start, NEVER, BARELY),
    "deadlines.rollout_s": Key(parts.slow_evaluation, NEVER, BARELY),
    "deadlines.update_s": Key(parts.taken_up, 0.1, 0.2, {**ENDLESS, "rollout.update_mode": "drain"}),
    "deadlines.step_s": Key(parts.unanswered_receipt, 0.3, 0.4, SCRIPTED),
    "deadlines.checkpoint_s": Key(parts.slow_checkpoint, NEVER, BARELY),
    "deadlines.upload_s": Key(upload_asked, 10.0, 20.0, {"checkpoint.folder": "s3://bucket/here"}),
    "deadlines.stop_s": Key(time_to_stop, 10.0, 20.0),
    "deadlines.tracker_s": Key(lambda config, folder: finish_limit_s(config, stopping=False), 10.0, 20.0),
    "deadlines.stall_s": Key(parts.stands_still_after, 50.0, 500.0),
    "gateway.enabled": Key(gateway.shares, False, True),
    "gateway.host": Key(gateway.listens_at, "127.0.0.1", "127.0.0.2"),
    "gateway.port": Key(gateway.asks_for_port, 8001, 8002),
    "gateway.insecure_bind": Key(gateway.faults, False, True, {"gateway.host": "0.0.0.0"}),
    "gateway.names": Key(gateway.codes, (), ("train.example",)),
    "gateway.path_prefix": Key(gateway.code_behind_prefix, "", "/llm"),
    "gateway.tls_cert": Key(gateway.certificate, "one.pem", "other.pem"),
    "gateway.tls_key": Key(gateway.certificate, "one.pem", "other.pem"),
    "gateway.max_body_bytes": Key(gateway.codes, 3000, 5000),
    "gateway.max_completions": Key(gateway.codes, 4, 64),
    "gateway.max_requests": Key(gateway.codes, 1, 2),
    "gateway.max_prompts": Key(gateway.open_prompts, 2, 3),
    "gateway.max_prompt_tokens": Key(needed, 10, 4000, {"gateway.enabled": True}),
    "gateway.max_payload_bytes": Key(gateway.payload_code, 100, 200),
    "gateway.waiting_bytes": Key(settings_of, 1000, 2000),
    "gateway.session_idle_s": Key(gateway.remembered, 60.0, 6000.0),
    "gateway.session_bytes": Key(gateway.remembered, 3000, 2**20),
    "gateway.session_sampling": Key(gateway.drawn_in_session, "asked", "run"),
    "gateway.tool_call_parser": Key(gateway.forms_read, "auto", "mistral"),
    "gateway.reasoning_parser": Key(gateway.forms_read, "none", "think"),
    "gateway.serve.replicas": Key(gateway.serve_options, 1, 2),
    "gateway.serve.max_replicas": Key(gateway.serve_options, 3, 4, {"gateway.serve.replicas": 1}),
    "gateway.serve.target_ongoing_requests": Key(
        gateway.serve_options, 1.0, 2.0, {"gateway.serve.replicas": 1, "gateway.serve.max_replicas": 3}
    ),
    "gateway.serve.replicas_per_node": Key(gateway.serve_options, 1, 2),
    "gateway.serve.port": Key(gateway.serve_options, 8000, 8001),
    "gateway.stream_weights": Key(gateway.shared, {"agents": 1.0}, {"agents": 3.0}),
    "gateway.stream_priorities": Key(gateway.shared, {"agents": 0}, {"agents": 1}),
    "ray.address": Key(too_little, "local", "10.0.0.1:6379"),
    "ray.num_cpus": Key(ray_options, 1, 2),
    "ray.object_store_bytes": Key(ray_options, 2**27, 2**28),
    "observe.trace": Key(parts.recorded, True, False),
    "observe.log_bytes": Key(parts.logged_bytes, 4 * 2**20, 8 * 2**20),
    "observe.token_bytes": Key(learner.tokens_kept, 0, 2**20),
    "observe.tensorboard": Key(parts.recorded, True, False),
    "observe.trackers": Key(parts.recorded, (), ("tensorboard",)),
    "observe.project": Key(lambda config, folder: parts.known_to_trackers(config, folder).project, "one", "other"),
    "observe.names": Key(parts.figures_told, "none", "verl", {"observe.trackers": ("tensorboard",)}),
}


def keys_of(table: type[Table], prefix: str = "") -> Iterator[str]:
    """Every key of the schema, dotted."""
    for field in msgspec.structs.fields(table):
        if isinstance(field.type, type) and issubclass(field.type, Table):
            yield from keys_of(field.type, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name


def configured(values: dict[str, Any]) -> Config:
    """A configuration from dotted keys, as a file would give it."""
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *tables, name = key.split(".")
        place = tree
        for table in tables:
            place = place.setdefault(table, {})
        place[name] = value
    return msgspec.convert(tree, Config)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A model folder, and the module of the probes where every process finds it."""
    folder = tmp_path_factory.mktemp("keys")
    prepare_model_folder(ModelConfig(preset="tiny-qwen3"), 0, folder / "model")
    (folder / "probe_task.py").write_text(MODULE)
    thresholds, threads = gc.get_threshold(), torch.get_num_threads()
    sys.path.insert(0, str(folder))
    torch.set_num_threads(1)
    yield folder / "model"
    torch.set_num_threads(threads)
    sys.path.remove(str(folder))
    sys.modules.pop("probe_task", None)
    gc.set_threshold(*thresholds)


def test_every_key_of_the_schema_has_a_probe_and_every_probe_a_key() -> None:
    assert sorted(KEYS) == sorted(keys_of(Config))


class Probed:
    """Runs probes, each configuration once, in folders of their own."""

    def __init__(self, model: Path, folders: Path) -> None:
        self._basis = {"model.path": str(model), "queue.segment_bytes": 2**20, "learner.optimizer.warmup_steps": 2}
        self._folders = folders
        self._count = itertools.count()
        self._seen: dict[tuple[Probe, bytes], Any] = {}

    def run(self, key: str, value: Any) -> Any:
        """What the key's probe sees under `value`; looked up if it was seen before."""
        case, config = KEYS[key], self._config(key, value)
        place = case.probe, msgspec.json.encode(config)
        if place not in self._seen:
            self._seen[place] = case.probe(config, self._folder())
        return self._seen[place]

    def again(self, key: str, value: Any) -> Any:
        """The same, run anew."""
        return KEYS[key].probe(self._config(key, value), self._folder())

    def _config(self, key: str, value: Any) -> Config:
        return configured({**self._basis, **KEYS[key].given, key: value})

    def _folder(self) -> Path:
        folder = self._folders / str(next(self._count))
        folder.mkdir()
        return folder


@pytest.fixture(scope="module")
def probed(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Probed:
    return Probed(model, tmp_path_factory.mktemp("probes"))


KERNELS_MAKE = ("weights.delta",)
"""What only compiled kernels make: under NUMBA_DISABLE_JIT=1 there is none either way."""


@pytest.mark.parametrize("key", [pytest.param(key, marks=NEEDS_KERNELS if key in KERNELS_MAKE else ()) for key in KEYS])
def test_a_key_changes_what_the_code_does(key: str, probed: Probed) -> None:
    first, second = KEYS[key].first, KEYS[key].second
    seen = probed.run(key, first), probed.run(key, second)
    assert seen[0] != seen[1], f"{key} = {first!r} and {second!r} make no difference"


@pytest.mark.parametrize("key", {case.probe: key for key, case in KEYS.items()}.values())
def test_a_probe_sees_the_same_again_so_that_a_difference_is_the_keys(key: str, probed: Probed) -> None:
    assert probed.run(key, KEYS[key].first) == probed.again(key, KEYS[key].first)
