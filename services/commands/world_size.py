"""`streamrl check --world-size`: whether so many learner ranks can be laid out by megatron-core, and whether what each
keeps fits its GPU. It asks nothing of this machine.
"""

from collections.abc import Sequence

import msgspec

from streamrl.config import Config, ConfigProblems, Problem, ResourceProblems, load_args
from streamrl.config.estimates.megatron import MegatronLayout, model_fits
from streamrl.config.estimates.megatron_memory import DEVICE_BYTES, RankMemory, rank_memory
from streamrl.config.estimates.model_facts import ModelFacts
from streamrl.config.estimates.model_of import run_facts
from streamrl.config.estimates.sizes import human_bytes
from streamrl.errors import ConfigError

_GIB = 2**30
_RANKS = "learner.num_workers"


def check_layout(path: str, rest: Sequence[str], world_size: int, gpu_gib: float, as_json: bool) -> int:
    """Print what the ranks have. Raises ConfigError for a layout that cannot be, ResourceError for a rank that does not
    fit."""
    config = load_args(path, [*rest, f"--{_RANKS}", str(world_size)])
    model = _model_of(config, gpu_gib)
    memory = rank_memory(config, model)
    fullest = max(memory, key=lambda one: one.total)
    if fullest.total > gpu_gib * _GIB:
        raise ResourceProblems((_too_full(config, fullest, gpu_gib),))
    if as_json:
        facts = [{**one._asdict(), "total": one.total} for one in memory]
        print(
            msgspec.json.encode({"world_size": world_size, "gpu_bytes": int(gpu_gib * _GIB), "stages": facts}).decode()
        )
    else:
        print(*_lines(path, config, model, memory, gpu_gib), sep="\n")
    return 0


def _model_of(config: Config, gpu_gib: float) -> ModelFacts:
    if config.learner.backend != "megatron":
        raise ConfigError(
            f'--world-size is about layouts of learner.backend = "megatron", and it is "{config.learner.backend}"; '
            "leave it out, and set learner.num_workers"
        )
    if not gpu_gib > 0:
        raise ConfigError(f"--gpu-gib is {gpu_gib:g}; give the memory of a GPU in GiB")
    model, problems = run_facts(config)
    if model is not None:
        problems = [*problems, *model_fits(config, model)]
    if problems or model is None:
        raise ConfigProblems(tuple(problems))
    return model


def _lines(path: str, config: Config, model: ModelFacts, memory: Sequence[RankMemory], gpu_gib: float) -> list[str]:
    layout = MegatronLayout.of(config.learner.megatron, config.learner.num_workers)
    stretches = f" x {layout.context} context" if layout.context > 1 else ""
    sizes = f"{layout.data_size} data x {layout.pipeline} pipeline x {layout.tensor} tensor{stretches} parallel"
    experts = f", the experts of a layer over {layout.expert} x {layout.expert_tensor}" if model.num_experts else ""
    each = model.num_layers // layout.pipeline
    lines = [f"{path}: {layout.world_size} ranks = {sizes}{experts}; {each} layers a stage"]
    lines += [f"stage {one.stage}: {human_bytes(one.total)} of {gpu_gib:g} GiB ({_parts(one)})" for one in memory]
    return lines


def _parts(one: RankMemory) -> str:
    parts = {
        "weights": one.weights,
        "gradients": one.gradients,
        "optimizer": one.optimizer,
        "activations": one.activations,
        "CUDA and NCCL": DEVICE_BYTES,
    }
    return ", ".join(f"{name} {human_bytes(size)}" for name, size in parts.items())


def _too_full(config: Config, one: RankMemory, gpu_gib: float) -> Problem:
    megatron, ways = config.learner.megatron, []
    if megatron.recompute != "layers":
        ways.append('learner.megatron.recompute = "layers"')
    if not megatron.distributed_optimizer:
        ways.append("learner.megatron.distributed_optimizer = true")
    ways += ["a lower learner.micro_batch_tokens", "more of tensor_parallel, pipeline_parallel or expert_parallel"]
    what = (
        f"a rank of stage {one.stage} keeps {human_bytes(one.total)}, and a GPU has {gpu_gib:g} GiB ({_parts(one)}); "
        f"set {', '.join(ways[:-1])} or {ways[-1]}"
    )
    return Problem(key="learner.megatron", what=what)
