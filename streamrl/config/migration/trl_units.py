"""From TRL's numbers to ours: batches, epochs, losses, the calls around the arguments. Pure.

TRL counts completions. One update takes `per_device_train_batch_size` x processes x `gradient_accumulation_steps` of
them, and one generation `steps_per_generation` micro-batches. So a generation is a batch of ours, with a mini-batch for
each update, and has `num_generations` completions of each prompt. TRL's defaults that are not ours are written out.
"""

import ast
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, Final

from streamrl.config.migration import trl_table as trl
from streamrl.config.migration.python_calls import Script, first
from streamrl.config.migration.shared import (
    Gpus,
    steps_of_epochs,
    write_gpus,
    write_model,
    write_name,
    write_trackers,
    write_warmup,
)
from streamrl.config.migration.table import Findings, Setting, Source, Unread
from streamrl.config.migration.trl_table import G, L, T

CALLS: Final[Mapping[str, str]] = {
    "GRPOConfig": G,
    "AsyncGRPOConfig": G,
    "LoraConfig": L,
    "GRPOTrainer": T,
    "AsyncGRPOTrainer": T,
}
BUILT_IN: Final[Mapping[str, str]] = {"trl.rewards:accuracy_reward": "math"}
"""Rewards of TRL that are one of ours."""

DEFAULTS: Final[Mapping[str, Any]] = {
    f"{G}.per_device_train_batch_size": 8,
    f"{G}.gradient_accumulation_steps": 1,
    f"{G}.num_generations": 8,
    f"{G}.max_completion_length": 256,
    f"{G}.learning_rate": 1e-6,
    f"{G}.adam_beta1": 0.9,
    f"{G}.adam_beta2": 0.999,
    f"{G}.lr_scheduler_type": "linear",
    f"{G}.num_train_epochs": 3.0,
    f"{G}.max_steps": -1,
    f"{G}.seed": 42,
    f"{G}.epsilon": 0.2,
    f"{G}.beta": 0.0,
    f"{G}.loss_type": "dapo",
    f"{G}.importance_sampling_level": "token",
    f"{G}.scale_rewards": "group",
    f"{G}.gradient_checkpointing": True,
    f"{G}.vllm_mode": "colocate",
    f"{G}.vllm_importance_sampling_correction": True,
    f"{G}.vllm_importance_sampling_mode": "sequence_mask",
    f"{G}.vllm_importance_sampling_cap": 3.0,
    f"{G}.ref_model_mixup_alpha": 0.6,
    f"{G}.ref_model_sync_steps": 512,
    f"{G}.save_steps": 500,
    f"{L}.r": 8,
    f"{L}.lora_alpha": 8,
}
WRITTEN_DEFAULTS: Final = (
    f"{G}.num_generations",
    f"{G}.max_completion_length",
    f"{G}.learning_rate",
    f"{G}.lr_scheduler_type",
    f"{G}.epsilon",
    f"{G}.scale_rewards",
    f"{G}.gradient_checkpointing",
)


def convert_units(
    source: Source, script: Script, found: Findings, *, rows: int | None, devices: int, is_folder: Callable[[str], bool]
) -> None:
    """What a table cannot say by itself. devices: processes that the script was started with."""
    _names(source, found)
    _trainer(source, script, found, is_folder)
    groups, parts = _batches(source, found, devices)
    steps = _steps(source, found, rows, groups, parts)
    _optimizer(source, found, steps)
    _loss(source, found)
    _divergence(source, found)
    _engine(source, found, devices)
    _adapters(source, script, found)
    _looks(source, found, parts)


def _names(source: Source, found: Findings) -> None:
    name = source.first(f"{G}.run_name", f"{G}.output_dir")
    if source.has(name):
        setting = source.setting(name)
        last = Setting(setting.name, PurePath(str(setting.value)).name, setting.line, setting.file)
        write_name("name", last, source.origin(name), found)
    if source.has(f"{G}.report_to"):
        write_trackers(source.setting(f"{G}.report_to"), source.origin(f"{G}.report_to"), found)
    if source.has(f"{G}.project"):
        write_name("observe.project", source.setting(f"{G}.project"), source.origin(f"{G}.project"), found)


def _trainer(source: Source, script: Script, found: Findings, is_folder: Callable[[str], bool]) -> None:
    call = first(list(script.calls("GRPOTrainer", "AsyncGRPOTrainer")))
    if not isinstance(call, ast.Call):
        found.note("the script makes no GRPOTrainer: set model.path, data.train and reward.function")
        return
    _model(script, call, found, is_folder)
    for argument, key in (("train_dataset", "data.train"), ("eval_dataset", "data.eval")):
        if (node := script.argument(call, argument)) is not None:
            _data(source, script, node, key, argument, found)
    rewards = script.argument(call, "reward_funcs", 1)
    if rewards is not None:
        _rewards(source, script, rewards, found)


def _model(script: Script, call: ast.Call, found: Findings, is_folder: Callable[[str], bool]) -> None:
    node = script.argument(call, "model", 0)
    for _ in range(2):  # a variable that is a call of from_pretrained
        if isinstance(node, ast.Name) and isinstance(script.value(node), Unread):
            node = first(script.expressions(node.id))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "from_pretrained":
            node = node.args[0] if node.args else None
    value = script.value(node) if node is not None else None
    if isinstance(value, str) and node is not None:
        setting = Setting(f"{T}.model", value, node.lineno)
        write_model(setting, f"{T}.model (line {node.lineno})", found, is_folder)
    else:
        found.note("the script computes its model: set model.path")


def _data(source: Source, script: Script, node: ast.expr, key: str, argument: str, found: Findings) -> None:
    """The address of a data set that `load_dataset` makes. What is done with its rows after that is code."""
    shaped = False
    place = node
    for _ in range(6):
        if isinstance(node, ast.Name):
            expressions = script.expressions(node.id)
            shaped |= len(expressions) > 1
            node = expressions[0] if expressions else node
        if isinstance(node, ast.Subscript):
            shaped, node = True, node.value
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr != "load_dataset":
            shaped, node = True, node.func.value
    if not (isinstance(node, ast.Call) and "load_dataset" in ast.unparse(node.func)):
        found.leave(
            Setting(f"{T}.{argument}", Unread(ast.unparse(place)), place.lineno), f"it is made by code: set {key}"
        )
        return
    address = _address(script, node)
    if address is None:
        found.leave(
            Setting(f"{T}.{argument}", Unread(ast.unparse(node)), node.lineno), f"its address is computed: set {key}"
        )
        return
    found.write(key, address, f"load_dataset (line {node.lineno})")
    if shaped:
        found.note(
            f"{key}: what the script makes of the rows is code; data.columns and data.system name the usual forms"
        )


def _address(script: Script, call: ast.Call) -> str | None:
    given = [script.value(node) for node in call.args]
    named = {word.arg: script.value(word.value) for word in call.keywords}
    files, split = named.get("data_files"), named.get("split", "")
    if given and given[0] in ("json", "csv", "parquet") and isinstance(files, str):
        return files
    parts = [given[0] if given else named.get("path"), given[1] if len(given) > 1 else named.get("name")]
    if not isinstance(parts[0], str) or any(isinstance(part, Unread) for part in (*parts, split)):
        return None
    inside = f"/{parts[1]}" if parts[1] else ""
    return f"hf:{parts[0]}{inside}" + (f"#{split}" if isinstance(split, str) and split.isidentifier() else "")


def _rewards(source: Source, script: Script, node: ast.expr, found: Findings) -> None:
    if isinstance(node, ast.Name) and (expression := first(script.expressions(node.id))) is not None:
        node = expression
    nodes = node.elts if isinstance(node, ast.List | ast.Tuple) else [node]
    named = [_reward(script, one) for one in nodes]
    unknown = [one for one, name in zip(nodes, named, strict=True) if name is None]
    for one in unknown:
        setting = Setting(f"{T}.reward_funcs", Unread(ast.unparse(one)), one.lineno)
        found.leave(setting, "no function of a module; a reward model is reward.model.path (docs/guides/rewards.md)")
    names = [name for name in named if name is not None]
    origin = f"{T}.reward_funcs (line {node.lineno})"
    weights = source.value(f"{G}.reward_weights")
    if len(names) == 1 and not unknown:
        found.write("reward.function", names[0], origin)
    elif names:
        weighed = weights if isinstance(weights, list) and len(weights) == len(nodes) else [1.0] * len(nodes)
        kept = [weight for weight, name in zip(weighed, named, strict=True) if name is not None]
        found.write("reward.functions", dict(zip(names, map(float, kept), strict=True)), origin)
    if any(name.startswith("trl_rewards:") for name in names):
        found.note("move the script's reward functions into a module trl_rewards.py: importing the script would train")


def _reward(script: Script, node: ast.expr) -> str | None:
    if not isinstance(node, ast.Name):
        return None
    place = script.modules().get(node.id)
    if place is not None:
        return BUILT_IN.get(place, place)
    return f"trl_rewards:{node.id}" if node.id in script.functions() else None


def _batches(source: Source, found: Findings, devices: int) -> tuple[int, int]:
    """(groups of a step, its mini-batches)."""
    one, accumulated = f"{G}.per_device_train_batch_size", f"{G}.gradient_accumulation_steps"
    whole, steps, size = f"{G}.generation_batch_size", f"{G}.steps_per_generation", f"{G}.num_generations"
    micro = source.count(one) * devices
    update = micro * source.count(accumulated)
    if source.number(whole):
        generated = source.count(whole)
    else:
        generated = micro * source.count(steps) if source.number(steps) else update
    groups = max(1, generated // source.count(size))
    parts = min(groups, max(1, generated // update))
    origin = f"{source.origin(one, accumulated, steps, whole)} on {devices} devices, by {source.origin(size)}"
    found.write("learner.groups_per_step", groups, origin)
    if parts > 1:
        found.write("learner.mini_batches", parts, origin)
    longest = source.count(f"{G}.max_completion_length") + _prompt_tokens(source, found)
    tokens = max(longest, source.count(one) * longest)
    found.write("learner.micro_batch_tokens", tokens, f"{source.origin(one)} rows of {longest} tokens")
    found.write("learner.max_staleness", 1, "TRL takes turns; one step of age lets both sides work at once")
    return groups, parts


def _prompt_tokens(source: Source, found: Findings) -> int:
    name = f"{G}.max_prompt_length"
    tokens = source.count(name) if source.number(name) else 512
    origin = source.origin(name) if source.number(name) else "TRL has no bound on prompts any more"
    found.write("data.max_prompt_tokens", tokens, origin)
    found.write("data.too_long", "skip", "a prompt is never cut; those that are too long are left out")
    return tokens


def _steps(source: Source, found: Findings, rows: int | None, groups: int, parts: int) -> int | None:
    """TRL counts updates; a step here has one for each mini-batch and epoch."""
    updates = parts * source.count(f"{G}.num_iterations")
    most = source.number(f"{G}.max_steps")
    if most and most > 0:
        steps = max(1, int(most) // updates)
        found.write("learner.steps", steps, f"{source.origin(f'{G}.max_steps')}, {updates} updates a step")
        return steps
    counted = steps_of_epochs(source.number(f"{G}.num_train_epochs"), rows, groups)
    epochs = f"{G}.num_train_epochs"
    if counted is None:
        found.leave(
            source.setting(epochs), "epochs of data whose rows are not known; give --rows, or set learner.steps"
        )
    else:
        found.write("learner.steps", counted, f"{source.origin(epochs)} over {rows} rows, {groups} at a time")
    return counted


def _optimizer(source: Source, found: Findings, steps: int | None) -> None:
    betas = [source.value(f"{G}.adam_beta1"), source.value(f"{G}.adam_beta2")]
    found.write("learner.optimizer.betas", betas, source.origin(f"{G}.adam_beta1", f"{G}.adam_beta2"))
    found.write("learner.optimizer.min_lr_ratio", 0.0, "the schedules of transformers end at 0")
    write_warmup(source, f"{G}.warmup_steps", f"{G}.warmup_ratio", steps, found)
    if source.value(f"{G}.bf16") is not False:
        found.write("model.dtype", "bfloat16", source.origin(f"{G}.bf16"))


def _loss(source: Source, found: Findings) -> None:
    name, level = f"{G}.loss_type", f"{G}.importance_sampling_level"
    pair = trl.LOSSES.get(source.value(name))
    high = source.first(f"{G}.epsilon_high", f"{G}.epsilon")
    found.write("learner.algorithm.clip_high", source.value(high), source.origin(high))
    if pair is None:
        found.leave(source.setting(name), "no such loss; docs/guides/algorithms.md has those that there are")
        return
    loss, aggregation = pair
    if source.value(level) == "sequence":
        loss = "gspo"
    elif source.value(level) != "token":
        found.leave(source.setting(level), "a ratio is the token's, or the row's (loss = \"gspo\")")
    found.write("learner.algorithm.loss", loss, source.origin(name, level))
    found.write("learner.algorithm.aggregation", aggregation, source.origin(name))
    if aggregation == "seq_mean_token_sum_norm":
        horizon = f"{G}.max_completion_length"
        found.write("learner.algorithm.horizon", source.count(horizon), source.origin(horizon))
    if source.value(name) == "bnpo":
        found.note("TRL's bnpo divides by the tokens of one process's micro-batch; here by those of the whole batch")
    if loss == "ppo" and source.number(f"{G}.delta"):
        found.write("learner.algorithm.dual_clip", source.value(f"{G}.delta"), source.origin(f"{G}.delta"))
    if loss == "sapo":
        for end, ours in (("pos", "positive"), ("neg", "negative")):
            if source.has(f"{G}.sapo_temperature_{end}"):
                given = f"{G}.sapo_temperature_{end}"
                found.write(f"learner.algorithm.sapo_tau_{ours}", source.value(given), source.origin(given))


def _divergence(source: Source, found: Findings) -> None:
    beta = source.number(f"{G}.beta")
    if beta:
        found.write("learner.algorithm.kl_coef", beta, source.origin(f"{G}.beta"))
        found.write("learner.algorithm.kl_in", "loss", source.origin(f"{G}.beta"))
        found.write("learner.algorithm.kl_estimator", "k3", "TRL's estimate of the divergence")
        if source.value(f"{G}.sync_ref_model") is True:
            every, alpha = f"{G}.ref_model_sync_steps", f"{G}.ref_model_mixup_alpha"
            found.write("learner.algorithm.reference.kind", "average", source.origin(f"{G}.sync_ref_model"))
            found.write("learner.algorithm.reference.every", source.count(every), source.origin(every))
            kept = round(1.0 - float(source.value(alpha)), 6)
            found.write("learner.algorithm.reference.decay", kept, source.origin(alpha))
    found.write("learner.algorithm.proximal", "recompute", "TRL's ratio is against the policy before the step")
    pair = trl.CORRECTIONS.get(source.value(f"{G}.vllm_importance_sampling_mode"))
    if source.value(f"{G}.use_vllm") is not True or source.value(f"{G}.vllm_importance_sampling_correction") is False:
        return
    mode, cap = f"{G}.vllm_importance_sampling_mode", f"{G}.vllm_importance_sampling_cap"
    if pair is None:
        found.leave(source.setting(mode), "see learner.algorithm.correction")
        return
    found.write("learner.algorithm.correction", pair[0], source.origin(mode))
    found.write("learner.algorithm.correction_level", pair[1], source.origin(mode))
    found.write("learner.algorithm.tis_cap", source.value(cap), source.origin(cap))


def _engine(source: Source, found: Findings, devices: int) -> None:
    serves, mode = source.value(f"{G}.use_vllm") is True, f"{G}.vllm_mode"
    found.write("rollout.engine", "vllm" if serves else "torch", source.origin(f"{G}.use_vllm"))
    tensor = source.count(f"{G}.vllm_tensor_parallel_size") if serves else 1
    if serves and source.value(mode) == "server":
        origin = f"{source.origin(mode)}; {devices} devices of the trainer, and those of its server"
        write_gpus(Gpus(devices, tensor), tensor, origin, found)
    else:
        write_gpus(Gpus(devices, devices, shared=True), min(tensor, max(1, devices // 2)), f"{devices} devices", found)


def _adapters(source: Source, script: Script, found: Findings) -> None:
    if not script.calls("LoraConfig"):
        return
    found.write("learner.lora.rank", source.count(f"{L}.r"), source.origin(f"{L}.r"))
    found.write("learner.lora.alpha", float(source.value(f"{L}.lora_alpha")), source.origin(f"{L}.lora_alpha"))
    targets = source.value(f"{L}.target_modules")
    if isinstance(targets, list | tuple | set):
        found.write("learner.lora.targets", sorted(targets), source.origin(f"{L}.target_modules"))
    elif targets not in (None, "all-linear"):
        found.write("learner.lora.targets", [targets], source.origin(f"{L}.target_modules"))


def _looks(source: Source, found: Findings, parts: int) -> None:
    updates = parts * source.count(f"{G}.num_iterations")
    for name, key in ((f"{G}.save_steps", "checkpoint.every"), (f"{G}.eval_steps", "eval.every")):
        every = source.number(name)
        if source.has(name) and every is not None and every >= 1:
            found.write(key, max(1, int(every) // updates), source.origin(name))
        elif source.has(name):
            found.leave(source.setting(name), f"a share of the run; set {key} to a number of steps")
