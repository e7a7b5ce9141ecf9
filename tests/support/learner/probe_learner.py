"""What a configuration makes of a learner: the real core, without Ray, on rows written by the real log."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from transformers import AutoConfig, Qwen3MoeConfig, Qwen3MoeForCausalLM

from streamrl.buffers.rows.records import Lease
from streamrl.clock import SystemClock
from streamrl.config import Config
from streamrl.config.estimates.megatron import MegatronLayout
from streamrl.config.schema.run import ModelConfig
from streamrl.engines.build import build_engine
from streamrl.engines.server.process.place import ServerPlace
from streamrl.errors import ConfigError
from streamrl.learner.checkpoint.digest import weight_digest
from streamrl.learner.megatron.families import family_of
from streamrl.learner.megatron.settings import gradient_settings, layer_settings
from streamrl.learner.optim.schedule import learning_rate
from streamrl.models.load import prepare_model_folder
from streamrl.observability.timeline import StepTimer
from streamrl.services.learner.core import LearnerCore
from streamrl.services.rollout.completions import CompletionLog
from streamrl.services.rollout.rows import Finished, Issued
from streamrl.services.run.folder import RunFolder
from streamrl.types import (
    FinishReason,
    FrameRef,
    GenerationRequest,
    GenerationResult,
    SamplingParams,
    Ticket,
    Version,
    VersionSpan,
)
from streamrl.weights.folder import shm_folder

GROUPS, GROUP_SIZE, VOCAB = 3, 4, 20
STEPS = 3
COMPONENTS = np.stack([np.arange(GROUPS * GROUP_SIZE) % 2, np.arange(GROUPS * GROUP_SIZE) % 3], axis=1) / 2.0
REWARDS = ((7 * np.arange(GROUPS * GROUP_SIZE)) % 5) / 4.0


class Learned(NamedTuple):
    """What three steps left: forward passes of the model, loss, digest of the weights, checkpoints."""

    passes: int
    loss: float
    digest: str
    checkpoints: list[str]


def open_run(config: Config, folder: Path) -> RunFolder:
    folder.mkdir(parents=True, exist_ok=True)
    return RunFolder.create(folder, config.name)


@contextmanager
def built(config: Config, folder: Path) -> Iterator[LearnerCore]:
    """A learner core that has its model; the process's thread count is put back."""
    run, threads = open_run(config, folder), torch.get_num_threads()
    core = LearnerCore(run, config, 0, run.path / "learner.store")
    try:
        core.build()
        yield core
    finally:
        if torch.distributed.is_initialized():
            core.close()
        torch.set_num_threads(threads)


def learn(config: Config, folder: Path, frames: int = 1) -> Learned:
    """Three steps on the same seeded rows, each with a checkpoint. frames: the rows lie in so many."""
    with built(config, folder) as core:
        written = asyncio.run(write_rows(config, folder, frames))
        timer = StepTimer(SystemClock(), ("read", "pack", "forward_backward", "optimizer"))
        passes: list[None] = []
        core._policy.module.register_forward_hook(lambda *_: passes.append(None))
        for step in range(STEPS):
            metrics = core.train(core.plan(lease(step, written)), timer)
            core.save()
        names = sorted(path.name for path in (folder / "checkpoints").iterdir() if path.is_dir())
        return Learned(len(passes), metrics["loss/policy"], core.weight_digest(), names)


def threads_of(config: Config, folder: Path) -> int:
    """Threads that torch computes by in a process that has built a learner."""
    with built(config, folder):
        return torch.get_num_threads()


def balanced(config: Config, folder: Path) -> Learned:
    """The same with a model that has experts."""
    return learn(with_experts(config, folder), folder)


def replayed(config: Config, folder: Path) -> tuple[bool, bool]:
    """Whether an engine that is built says where tokens went, and whether the learner's policy follows."""
    config = with_experts(config, folder)
    engine = build_engine(config, Path(str(config.model.path)), 32, ServerPlace(folder, "probe"), "rollout-0")
    prompt = GenerationRequest("a", np.array([3, 4], np.int32), 0, SamplingParams(max_new_tokens=2), ())
    (result,) = engine.generate([prompt])
    with built(config, folder) as core:
        return result.routes is not None, core._policy.module.replays_routes


def with_experts(config: Config, folder: Path, **sizes_of: Any) -> Config:
    """With a small model that has experts, which is made for it. sizes_of: what it has otherwise."""
    made = folder / "experts"
    prepare_model_folder(ModelConfig(preset="tiny-qwen3"), 0, made)
    small = AutoConfig.from_pretrained(made)
    names = ("vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "eos_token_id")
    sizes = {name: getattr(small, name) for name in names}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "num_hidden_layers": 2}
    torch.manual_seed(0)
    Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes, **experts, max_position_embeddings=64, **sizes_of)).save_pretrained(
        made
    )
    return msgspec.structs.replace(config, model=ModelConfig(path=str(made), preset=None))


def megatron_settings(config: Config, folder: Path) -> tuple[Any, ...]:
    """Who of eight ranks has what, and what megatron-core is told."""
    model = AutoConfig.from_pretrained(config.model.path)
    megatron = config.learner.megatron
    layers = layer_settings(model, family_of(model), megatron, torch.float32, torch.device("cpu"))
    return MegatronLayout.of(megatron, 8), layers, gradient_settings(megatron)


def first_values(config: Config, folder: Path) -> str:
    """The digest of a critic that begins with a model made for it, another one under each name."""
    name = str(config.learner.critic.path)
    prepare_model_folder(ModelConfig(preset="tiny-qwen3"), len(name), folder / name)
    critic = msgspec.structs.replace(config.learner.critic, path=str(folder / name))
    learner = msgspec.structs.replace(config.learner, critic=critic)
    with built(msgspec.structs.replace(config, learner=learner), folder / "run") as core:
        return weight_digest(core._auxiliary.state_tensors())


def other_reference(config: Config, folder: Path) -> Learned:
    """The same, held to a model of the name that is the path, which is made for it."""
    reference = config.learner.algorithm.reference
    made = folder / str(reference.path)
    prepare_model_folder(ModelConfig(preset="tiny-qwen3"), len(str(reference.path)), made)
    reference = msgspec.structs.replace(reference, path=str(made))
    algorithm = msgspec.structs.replace(config.learner.algorithm, reference=reference)
    learner = msgspec.structs.replace(config.learner, algorithm=algorithm)
    return learn(msgspec.structs.replace(config, learner=learner), folder)


def layer_passes(config: Config, folder: Path) -> int:
    """How often a layer's attention is computed in one step."""
    with built(config, folder) as core:
        written = asyncio.run(write_rows(config, folder, 1))
        timer = StepTimer(SystemClock(), ("read", "pack", "forward_backward", "optimizer"))
        passes: list[None] = []
        layer = core._policy.module.model.base_model.layers[0]
        layer.self_attn.o_proj.register_forward_hook(lambda *_: passes.append(None))
        core.train(core.plan(lease(0, written)), timer)
        return len(passes)


def keeps_attention(config: Config, folder: Path) -> bool:
    """Whether a layer that is computed again is given a place for what its attention gave."""
    with built(config, folder) as core:
        written = asyncio.run(write_rows(config, folder, 1))
        timer = StepTimer(SystemClock(), ("read", "pack", "forward_backward", "optimizer"))
        kept: list[bool] = []
        attention = core._policy.module.model.base_model.layers[0].self_attn
        attention.register_forward_pre_hook(lambda _, __, given: kept.append("kept" in given), with_kwargs=True)
        core.train(core.plan(lease(0, written)), timer)
        return any(kept)


def logits_bytes(config: Config, folder: Path) -> int:
    """What the policy is told of the memory for logits."""
    with built(config, folder) as core:
        found: int = core._policy.module.logits_bytes
        return found


def gradients_kept_back(config: Config, folder: Path) -> int:
    """Packs of a step after which a rank's own parts of the gradients are not there yet."""
    with built(config, folder) as core:
        written = asyncio.run(write_rows(config, folder, 1))
        timer = StepTimer(SystemClock(), ("read", "pack", "forward_backward", "optimizer"))
        packs: list[bool] = []
        policy, tell = core._policy, core._policy.set_gradient_sync

        def look(last: bool) -> None:
            packs.append(all(param.grad is None for param in policy.module.parameters()))
            tell(last)

        policy.set_gradient_sync = look  # type: ignore[method-assign]
        core.train(core.plan(lease(0, written)), timer)
        return sum(packs) - 1


def built_without_compiler(config: Config, folder: Path) -> str:
    """What a learner says that is built where no C++ compiler is found."""
    path, compiler = os.environ.get("PATH", ""), os.environ.pop("CXX", None)
    os.environ["PATH"] = str(folder)
    try:
        with built(config, folder):
            return "built"
    except ConfigError as error:
        return str(error)
    finally:
        os.environ["PATH"] = path
        if compiler is not None:
            os.environ["CXX"] = compiler


def kept_beside_damage(config: Config, folder: Path) -> list[str]:
    """The checkpoints after a save, beside 22 MB that are none."""
    with built(config, folder) as core:
        unreadable = folder / "checkpoints" / "step_000099"
        unreadable.mkdir()
        (unreadable / "tensors_00000.safetensors").write_bytes(bytes(22 * 10**6))
        core.save()
        return sorted(path.name for path in unreadable.parent.iterdir())


def versions_that_fit(config: Config, folder: Path) -> int:
    """Versions that the learner publishes before it has to wait for an older one to go."""
    with built(config, folder) as core:
        while not core.lack_of_memory():
            core.publish(core.snapshot_weights())
            core.incarnation += 1
        return core.incarnation


def deltas_made(config: Config, folder: Path) -> list[str]:
    """The deltas that lie beside two versions that follow each other."""
    with built(config, folder) as core:
        written = asyncio.run(write_rows(config, folder, 1))
        timer = StepTimer(SystemClock(), ("read", "pack", "forward_backward", "optimizer"))
        core.publish(core.snapshot_weights())
        core.train(core.plan(lease(0, written)), timer)
        core.publish(core.snapshot_weights())
        return sorted(path.name for path in shm_folder(core._run.run_id).glob("*.delta"))


def warm(config: Config, folder: Path) -> list[tuple[Any, ...]]:
    """(step, loss, score, threads) of each step of the warm-up."""
    seen: list[tuple[Any, ...]] = []
    with built(config, folder) as core:
        core.warm_up(lambda one: seen.append((one.step, repr(one.loss), one.score, torch.get_num_threads())))
    return seen


def rows_in(config: Config, folder: Path) -> list[FrameRef]:
    """Seeded rows, in one frame."""
    return asyncio.run(write_rows(config, folder, 1))


def train(core: LearnerCore, written: list[FrameRef], steps: range) -> list[dict[str, float]]:
    """Steps on these rows, without a checkpoint; the metrics of each."""
    timer = StepTimer(SystemClock(), ("read", "pack", "forward_backward", "optimizer"))
    return [core.train(core.plan(lease(step, written)), timer) for step in steps]


async def write_rows(config: Config, folder: Path, frames: int) -> list[FrameRef]:
    """Row i is in frame i % frames."""
    log = CompletionLog(folder, config, "rollout-0", 0)
    rows = [finished(number, sample) for number in range(GROUPS) for sample in range(GROUP_SIZE)]
    written = [(await log.append(rows[first::frames]))[0] for first in range(frames)]
    log.close()
    return written


def finished(number: int, sample: int) -> Finished:
    """Seeded ids under log-probs that lie on both sides of what an untrained model gives."""
    random = np.random.default_rng([number, sample])
    ids = random.integers(3, VOCAB, 2 + sample).astype(np.int32)
    issued = Issued(Ticket(number, number, 0, 0, 9), sample, f"g{number}", f"p{number}", _prompt(number), "{}", 0)
    logprobs = random.uniform(-5.0, -1.0, len(ids)).astype(np.float32)
    spans = (VersionSpan(0, Version(0, 0)),)
    return Finished(issued, GenerationResult(f"g{number}/{sample}", ids, logprobs, spans, FinishReason.STOP), 1)


def _prompt(number: int) -> np.ndarray:
    return np.arange(3, 6 + number, dtype=np.int32)


def lease(step: int, frames: list[FrameRef]) -> Lease:
    rows = np.arange(GROUPS * GROUP_SIZE)
    sample, group = rows % GROUP_SIZE, rows // GROUP_SIZE
    return Lease(
        step=step,
        frames=frames,
        frame_index=(rows % len(frames)).astype(np.int32),
        row=(rows // len(frames)).astype(np.int32),
        group=group,
        sample_index=sample,
        branch=np.zeros(len(rows), np.int32),
        rewards=REWARDS,
        components=COMPONENTS,
        valid=np.ones(len(rows), np.bool_),
        num_tokens=2 + sample + 3 + group,
        sampled_tokens=2 + sample,
        truncated=sample == 2,
        oldest_step=np.zeros(len(rows), np.int64),
    )


def tokens_kept(config: Config, folder: Path) -> list[str]:
    """The files that a step leaves of single tokens."""
    with built(config, folder) as core:
        train(core, rows_in(config, folder), range(1))
    return sorted(path.name for path in folder.glob("tokens/*"))


def change(core: LearnerCore) -> None:
    """A step of one update, by gradients of 1."""
    backend = core._backend
    for shard in core._policy.shards.values():
        shard.grad = torch.ones_like(shard)
    backend._optimizer.set_learning_rate(learning_rate(core.step, backend._config, backend._total_steps))
    backend._optimizer.step()
    core._policy.clear_gradients()
    backend._steps_done += 1
    backend._updates_done += 1
