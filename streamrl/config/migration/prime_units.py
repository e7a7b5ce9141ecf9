"""From prime-rl's numbers to ours: batches, lengths, environments, losses, GPUs. Pure.

prime-rl counts rollouts in `batch_size`, `group_size` of them for each example. Its advantage is the reward minus the
mean of the group, its loss masks tokens whose probability has moved too far (DPPO). Its defaults that are not ours are
written out.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from streamrl.config.migration.prime_table import INF, OR, TR
from streamrl.config.migration.shared import Gpus, write_gpus, write_model, write_name
from streamrl.config.migration.table import Findings, Source

DEFAULTS: Final[Mapping[str, Any]] = {
    "deployment.num_train_gpus": 1,
    "deployment.num_infer_gpus": 1,
    f"{TR}.optim.lr": 1e-6,
    f"{TR}.optim.weight_decay": 0.01,
    f"{TR}.optim.betas1": 0.9,
    f"{TR}.optim.betas2": 0.999,
    f"{TR}.scheduler.type": "constant",
    f"{TR}.scheduler.warmup_steps": 0,
    f"{TR}.loss.type": "default",
    f"{TR}.loss.dppo_mask_low": 0.2,
    f"{TR}.loss.dppo_mask_high": 0.2,
    f"{TR}.model.lora.rank": 16,
    f"{TR}.model.lora.alpha": 32.0,
    f"{OR}.batch_size": 128,
    f"{OR}.group_size": 1,
    f"{OR}.seq_len": 2048,
    f"{OR}.max_off_policy_steps": 8,
    f"{OR}.algo.type": "grpo",
    f"{OR}.train.sampling.temperature": 1.0,
}
WRITTEN_DEFAULTS: Final = (
    f"{TR}.optim.lr",
    f"{TR}.optim.weight_decay",
    f"{TR}.scheduler.type",
    f"{TR}.scheduler.warmup_steps",
)
ADVANTAGES: Final[Mapping[Any, str]] = {"grpo": "dr_grpo", "default": "dr_grpo", "drgrpo": "dr_grpo", "max_rl": "maxrl"}
SAMPLING: Final[Mapping[str, str]] = {
    "temperature": "rollout.sampling.temperature",
    "max_completion_tokens": "rollout.sampling.max_new_tokens",
    "max_tokens": "rollout.sampling.max_new_tokens",
}
_FILTERS = (f"{OR}.pre_batch_filters", f"{OR}.filters")


def convert_units(source: Source, found: Findings, *, is_folder: Callable[[str], bool]) -> None:
    """What a table cannot say by itself."""
    name = source.first(f"{TR}.model.name", f"{OR}.model.name", f"{INF}.model.name", "model.name")
    if source.has(name):
        write_model(source.setting(name), source.origin(name), found, is_folder)
        found.write("model.dtype", "bfloat16", "prime-rl's engine has weights in bfloat16")
    else:
        found.note("prime-rl's files name no model: set model.path")
    _names(source, found)
    _steps(source, found)
    _batches(source, found)
    _sampling(source, found)
    _environment(source, found)
    _optimizer(source, found)
    _algorithm(source, found)
    _execution(source, found)
    _gpus(source, found)
    _evaluation(source, found)


def _names(source: Source, found: Findings) -> None:
    told = [name for name in ("wandb.name", "wandb.project", "wandb") if source.has(name)]
    if told:
        found.write("observe.trackers", ["wandb"], source.origin(*told))
    if source.has("wandb.name"):
        write_name("name", source.setting("wandb.name"), source.origin("wandb.name"), found)
    if source.has("wandb.project"):
        write_name("observe.project", source.setting("wandb.project"), source.origin("wandb.project"), found)


def _steps(source: Source, found: Findings) -> None:
    name = source.first(f"{TR}.max_steps", f"{OR}.max_steps", "max_steps")
    if source.number(name):
        found.write("learner.steps", int(source.value(name)), source.origin(name))
    else:
        found.note("prime-rl trains without an end where max_steps is absent: set learner.steps")


def _batches(source: Source, found: Findings) -> None:
    size = source.first(f"{OR}.rollouts_per_example", f"{OR}.group_size")
    batch = f"{OR}.batch_size"
    found.write("rollout.group_size", source.count(size), source.origin(size))
    if not source.has(f"{OR}.token_batch_size"):
        groups = max(1, source.count(batch) // source.count(size))
        found.write("learner.groups_per_step", groups, source.origin(batch, size))
    if not source.has(f"{OR}.max_off_policy_steps"):
        level = f"{OR}.max_async_level"
        name = level if source.number(level) else f"{OR}.max_off_policy_steps"
        found.write("learner.max_staleness", source.count(name), source.origin(name))
    length = _length_key(source)
    pack = source.first(f"{TR}.model.seq_len", length)
    tokens = max(source.count(pack), source.count(length))
    found.write("learner.micro_batch_tokens", tokens, source.origin(pack))


def _length_key(source: Source) -> str:
    """Of the tokens of a prompt and its completion."""
    return source.first(f"{OR}.seq_len", "seq_len", f"{OR}.seq_len")


def _sampling(source: Source, found: Findings) -> None:
    prefixes = (f"{OR}.sampling.", f"{OR}.train.sampling.")
    for setting in source:
        prefix = next((one for one in prefixes if setting.name.startswith(one)), None)
        if prefix is None:
            continue
        key = SAMPLING.get(setting.name.removeprefix(prefix))
        if key is not None and setting.value is not None:
            found.write(key, setting.value, source.origin(setting.name))
        elif key is None:
            found.leave(setting, "see [rollout.sampling]")
    length = source.count(_length_key(source))
    if "rollout.sampling.max_new_tokens" not in found.written:
        origin = f"{source.origin(_length_key(source))}, less a quarter for the prompt"
        found.write("rollout.sampling.max_new_tokens", max(1, length * 3 // 4), origin)
    longest = length - int(found.written["rollout.sampling.max_new_tokens"].value)
    if longest > 0:
        found.write("data.max_prompt_tokens", longest, f"what {source.origin(_length_key(source))} leaves of it")
        found.write("data.too_long", "skip", "prime-rl cuts rows that are too long; here they are left out")


def _environment(source: Source, found: Findings) -> None:
    """One environment of verifiers. Its rows are numbers of tasks."""
    name = source.first(f"{OR}.train.env", f"{OR}.env")
    given = source.value(name)
    tables = [one for one in given if isinstance(one, Mapping)] if isinstance(given, list) else []
    if not tables:
        found.note("prime-rl's files name no environment: set [data] and [reward], or [environment]")
        return
    if len(tables) > 1:
        found.leave(source.setting(name), f"a run has one environment; the first of {len(tables)} is converted")
    env = tables[0]
    taskset = env.get("taskset")
    identity = taskset.get("id") if isinstance(taskset, Mapping) else env.get("id")
    if not identity:
        found.leave(source.setting(name), "no id of a task set: set environment.options.taskset")
        return
    origin = source.origin(name)
    found.write("environment.name", "verifiers", origin)
    found.write("environment.options", {"taskset": str(identity), **_config_of(env, taskset)}, origin)
    found.write("environment.max_tokens", source.count(_length_key(source)), source.origin(_length_key(source)))
    found.write("reward.function", "environment", "the environment says it")
    found.note(
        "environment: each row of data.train says by `idx` which task of the set it is; make one with a row a task"
    )
    if not isinstance(taskset, Mapping):
        found.note("environment: an environment of verifiers before 1.0 needs a task set of today's; see its package")


def _config_of(env: Mapping[str, Any], taskset: Any) -> dict[str, Any]:
    config: dict[str, Any] = {}
    if isinstance(taskset, Mapping) and (own := {key: value for key, value in taskset.items() if key != "id"}):
        config["taskset"] = own
    if isinstance(env.get("args"), Mapping) and env["args"]:
        config["taskset"] = dict(env["args"])
    harness = env.get("harness")
    if isinstance(harness, Mapping):
        runtime = harness.get("runtime")
        agent: dict[str, Any] = {"harness": {key: value for key, value in harness.items() if key != "runtime"}}
        config["agent"] = {**agent, **({"runtime": dict(runtime)} if isinstance(runtime, Mapping) else {})}
    return {"config": config} if config else {}


def _optimizer(source: Source, found: Findings) -> None:
    names = f"{TR}.optim.betas1", f"{TR}.optim.betas2"
    found.write("learner.optimizer.betas", [source.value(name) for name in names], source.origin(*names))
    least, rate = source.number(f"{TR}.scheduler.min_lr") or 0.0, source.number(f"{TR}.optim.lr")
    ratio = round(min(1.0, least / rate), 6) if rate else 0.0
    found.write("learner.optimizer.min_lr_ratio", ratio, source.origin(f"{TR}.scheduler.min_lr", f"{TR}.optim.lr"))


def _algorithm(source: Source, found: Findings) -> None:
    name = source.first(f"{OR}.algorithm.type", f"{OR}.advantage.type", f"{OR}.advantage_type", f"{OR}.algo.type")
    given = source.value(name)
    if source.has(f"{OR}.algorithms") and isinstance(source.value(f"{OR}.algorithms"), list):
        name = f"{OR}.algorithms"
        ids = [one.get("id") if isinstance(one, Mapping) else one for one in source.value(name)]
        given = ids[0] if len(ids) == 1 else str(ids)
    if given in ADVANTAGES:
        found.write("learner.algorithm.advantage", ADVANTAGES[given], source.origin(name))
    else:
        found.leave(source.setting(name), "no such advantage; docs/guides/algorithms.md has those that there are")
    loss = f"{TR}.loss.type"
    if source.value(loss) != "default":
        found.leave(source.setting(loss), "no such loss; docs/guides/algorithms.md has those that there are")
    else:
        low, high = f"{TR}.loss.dppo_mask_low", f"{TR}.loss.dppo_mask_high"
        found.write("learner.algorithm.loss", "dppo", "prime-rl's default loss masks by the change of probability")
        found.write("learner.algorithm.divergence", "tv", "prime-rl's default loss masks by the change of probability")
        found.write("learner.algorithm.clip_low", source.value(low), source.origin(low))
        found.write("learner.algorithm.clip_high", source.value(high), source.origin(high))
    found.write("learner.algorithm.proximal", "rollout", "prime-rl's ratio is against the policy that sampled")
    found.write("learner.algorithm.correction", "none", "the ratio has the distance in it")
    found.write("learner.algorithm.aggregation", "token_mean", "prime-rl divides by the tokens of the batch")
    for filters in _FILTERS:
        for one in source.value(filters) or []:
            if isinstance(one, Mapping) and one.get("type") == "zero_advantage" and one.get("enforce", False):
                found.write("learner.filter.zero_variance", True, source.origin(filters))
            elif isinstance(one, Mapping) and one.get("enforce"):
                found.leave(source.setting(filters), f"rollouts are not filtered by {one.get('type')}")


def _execution(source: Source, found: Findings) -> None:
    for part, key in (("ac", "activation_checkpointing"), ("compile", "compile")):
        names = [
            one.name for one in source if one.name == f"{TR}.model.{part}" or one.name.startswith(f"{TR}.model.{part}.")
        ]
        if names:
            found.write(f"learner.execution.{key}", True, source.origin(names[0]))
    offloads = [f"{TR}.model.fsdp_cpu_offload", f"{TR}.model.optim_cpu_offload"]
    if any(source.value(name) is True for name in offloads):
        found.write("learner.execution.offload", True, source.origin(*offloads))
    prefix = f"{TR}.model.lora"
    adapters = [one.name for one in source if one.name == prefix or one.name.startswith(f"{prefix}.")]
    if adapters:
        found.write("learner.lora.rank", source.count(f"{prefix}.rank"), source.origin(f"{prefix}.rank"))
        found.write("learner.lora.alpha", float(source.value(f"{prefix}.alpha")), source.origin(f"{prefix}.alpha"))
        if isinstance(targets := source.value(f"{prefix}.target_modules"), list):
            found.write("learner.lora.targets", targets, source.origin(f"{prefix}.target_modules"))


def _gpus(source: Source, found: Findings) -> None:
    train, infer = "deployment.num_train_gpus", "deployment.num_infer_gpus"
    tensor, copies = f"{INF}.parallel.tp", f"{INF}.parallel.dp"
    parallel = source.count(tensor) if source.number(tensor) else 1
    rollout = source.count(infer)
    if not source.has(infer) and source.number(copies):
        rollout = source.count(copies) * parallel
    found.write("rollout.engine", "vllm", "prime-rl's engine")
    found.write("rollout.slots", 256, "no equal: requests that one replica decodes at once")
    write_gpus(Gpus(source.count(train), rollout), parallel, source.origin(train, infer, tensor, copies), found)
    if source.value(f"{INF}.model.enforce_eager") is True:
        found.write("rollout.server.args", ["--enforce-eager"], source.origin(f"{INF}.model.enforce_eager"))


def _evaluation(source: Source, found: Findings) -> None:
    samples = source.first(f"{OR}.eval.rollouts_per_example", f"{OR}.eval.group_size")
    warm = f"{OR}.eval.sampling.temperature"
    if source.count(samples) > 1:
        found.write("eval.samples", source.count(samples), source.origin(samples))
        temperature = source.value(warm) if source.number(warm) else 1.0
        found.write("eval.temperature", temperature, source.origin(warm))
