"""From verl's numbers to ours: batches, lengths, divergences, losses, GPUs. Pure.

verl counts prompts in `train_batch_size` and `ppo_mini_batch_size`, each with `rollout.n` responses; so do we, in
`learner.groups_per_step` and `rollout.group_size`. A mini-batch of verl is a part of a batch here. verl's defaults that
are not ours are written out.
"""

from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, Final

from streamrl.config.migration import verl_table as verl
from streamrl.config.migration.shared import (
    Gpus,
    reward_of_data,
    steps_of_epochs,
    write_gpus,
    write_model,
    write_name,
    write_trackers,
    write_warmup,
)
from streamrl.config.migration.table import Findings, Source
from streamrl.config.migration.verl_layout import convert_layout
from streamrl.config.migration.verl_loss import convert_loss
from streamrl.config.migration.verl_table import ACTOR, ALGORITHM, CRITIC, MODEL, OPTIM, ROLLOUT

DEFAULTS: Final[Mapping[str, Any]] = {
    "data.train_batch_size": 1024,
    "data.max_prompt_length": 512,
    "data.max_response_length": 512,
    "data.prompt_key": "prompt",
    "data.truncation": "error",
    "data.filter_overlong_prompts": False,
    f"{ACTOR}.ppo_mini_batch_size": 256,
    f"{ACTOR}.ppo_max_token_len_per_gpu": 16384,
    f"{ACTOR}.ulysses_sequence_parallel_size": 1,
    f"{ACTOR}.clip_ratio": 0.2,
    f"{ACTOR}.clip_ratio_c": 3.0,
    f"{ACTOR}.loss_agg_mode": "token-mean",
    f"{ACTOR}.policy_loss.loss_mode": "vanilla",
    f"{ACTOR}.kl_loss_coef": 0.001,
    f"{ACTOR}.kl_loss_type": "low_var_kl",
    f"{OPTIM}.lr": 1e-6,
    f"{OPTIM}.weight_decay": 0.01,
    f"{OPTIM}.betas": [0.9, 0.999],
    f"{OPTIM}.lr_scheduler_type": "constant",
    f"{OPTIM}.min_lr_ratio": 0.0,
    f"{CRITIC}.optim.lr": 1e-5,
    f"{CRITIC}.optim.weight_decay": 0.01,
    f"{CRITIC}.optim.betas": [0.9, 0.999],
    f"{MODEL}.enable_gradient_checkpointing": True,
    f"{ROLLOUT}.n": 1,
    f"{ROLLOUT}.name": "vllm",
    f"{ROLLOUT}.dtype": "bfloat16",
    f"{ROLLOUT}.max_num_seqs": 256,
    f"{ROLLOUT}.tensor_model_parallel_size": 2,
    f"{ALGORITHM}.adv_estimator": "gae",
    f"{ALGORITHM}.norm_adv_by_std_in_grpo": True,
    f"{ALGORITHM}.gamma": 1.0,
    f"{ALGORITHM}.lam": 1.0,
    f"{ALGORITHM}.kl_penalty": "kl",
    f"{ALGORITHM}.kl_ctrl.kl_coef": 0.001,
    "custom_reward_function.name": "compute_score",
    "reward.custom_reward_function.name": "compute_score",
    "trainer.total_epochs": 30,
    "trainer.n_gpus_per_node": 8,
    "trainer.nnodes": 1,
}
WRITTEN_DEFAULTS: Final = (
    "data.max_prompt_length",
    "data.max_response_length",
    f"{MODEL}.enable_gradient_checkpointing",
    f"{OPTIM}.lr",
    f"{OPTIM}.weight_decay",
    f"{OPTIM}.betas",
    f"{OPTIM}.min_lr_ratio",
    f"{ROLLOUT}.n",
    f"{ROLLOUT}.dtype",
    f"{ROLLOUT}.max_num_seqs",
)
"""Of keys that go to one of ours: what verl has by default, and we have otherwise."""


def convert_units(source: Source, found: Findings, *, rows: int | None, is_folder: Callable[[str], bool]) -> None:
    """What a table cannot say by itself. rows: of the training data, where that is known."""
    _names(source, found)
    if source.has(f"{MODEL}.path"):
        write_model(source.setting(f"{MODEL}.path"), source.origin(f"{MODEL}.path"), found, is_folder)
    else:
        found.note("verl's file names no model: set model.path")
    _data(source, found)
    _reward(source, found)
    steps = _steps(source, found, rows)
    _batches(source, found)
    _optimizer(source, found, steps)
    convert_loss(source, found)
    _adapters(source, found)
    _engine(source, found)
    _evaluation(source, found)
    convert_layout(source, found)


def _names(source: Source, found: Findings) -> None:
    for name, key in (("trainer.experiment_name", "name"), ("trainer.project_name", "observe.project")):
        if source.has(name):
            write_name(key, source.setting(name), source.origin(name), found)
    if source.has("trainer.logger"):
        write_trackers(source.setting("trainer.logger"), source.origin("trainer.logger"), found)


def _files(source: Source, name: str) -> list[str]:
    value = source.value(name)
    return [str(one) for one in value] if isinstance(value, list) else [str(value)] if value else []


def _data(source: Source, found: Findings) -> None:
    train, held_out = _files(source, "data.train_files"), _files(source, "data.val_files")
    if train:
        found.write("data.train", train if len(train) > 1 else train[0], source.origin("data.train_files"))
    else:
        found.note("verl's file names no training data: set data.train")
    if len(held_out) == 1:
        found.write("data.eval", held_out[0], source.origin("data.val_files"))
    elif held_out:
        found.write("data.eval", _named(held_out), source.origin("data.val_files"))
    if (column := source.value("data.prompt_key")) != "prompt":
        found.write("data.columns", {"prompt": column}, source.origin("data.prompt_key"))
    prefix = "data.apply_chat_template_kwargs."
    arguments = {one.name.removeprefix(prefix): one.value for one in source if one.name.startswith(prefix)}
    if arguments:
        found.write("data.chat_template_kwargs", arguments, source.origin(f"{prefix}{next(iter(arguments))}"))
    _too_long(source, found)


def _named(files: list[str]) -> dict[str, str]:
    """Sets by the names of their files, or of their folders where these are equal."""
    names = [PurePath(file).stem for file in files]
    if len(set(names)) < len(names):
        names = [f"{PurePath(file).parent.name}-{PurePath(file).stem}" for file in files]
    return {
        name if names.count(name) == 1 else f"{name}-{place}": file
        for place, (name, file) in enumerate(zip(names, files, strict=True))
    }


def _too_long(source: Source, found: Findings) -> None:
    truncation, filters = source.value("data.truncation"), source.value("data.filter_overlong_prompts")
    if truncation != "error" and not filters:
        found.leave(source.setting("data.truncation"), "a prompt is never cut; those that are too long are left out")
    skips = filters or truncation != "error"
    origin = source.origin("data.filter_overlong_prompts", "data.truncation")
    found.write("data.too_long", "skip" if skips else "error", origin)


def _reward(source: Source, found: Findings) -> None:
    place = source.first("reward.custom_reward_function.path", "custom_reward_function.path")
    if source.has(place) and source.value(place):
        path, name = PurePath(str(source.value(place))), source.value(f"{place.removesuffix('.path')}.name")
        found.write("reward.function", f"{path.stem}:{name}", source.origin(place))
        found.note(f"reward.function is found by import: start streamrl in {path.parent}, or put that on PYTHONPATH")
    elif guess := reward_of_data([*_files(source, "data.train_files"), *_files(source, "data.val_files")]):
        found.write("reward.function", guess, "verl chooses by the row's data_source; here by the names of the files")
    else:
        found.note("verl chooses the reward by each row's data_source: set reward.function (docs/guides/rewards.md)")
    for table in verl.OVERLONG:
        if source.has(f"{table}.enable") and source.value(f"{table}.enable") and source.has(f"{table}.len"):
            found.write("learner.overlong.buffer", source.value(f"{table}.len"), source.origin(f"{table}.len"))
            if source.has(f"{table}.penalty_factor"):
                penalty = source.value(f"{table}.penalty_factor")
                found.write("learner.overlong.penalty", penalty, source.origin(f"{table}.penalty_factor"))


def _steps(source: Source, found: Findings, rows: int | None) -> int | None:
    steps, groups = source.number("trainer.total_training_steps"), source.count("data.train_batch_size")
    if steps:
        found.write("learner.steps", int(steps), source.origin("trainer.total_training_steps"))
        return int(steps)
    counted = steps_of_epochs(source.number("trainer.total_epochs"), rows, groups)
    if counted is None:
        found.leave(
            source.setting("trainer.total_epochs"),
            "epochs of data whose rows are not known; give --rows, or set learner.steps",
        )
    else:
        origin = f"{source.origin('trainer.total_epochs')} over {rows} rows, {groups} at a time"
        found.write("learner.steps", counted, origin)
    return counted


def _batches(source: Source, found: Findings) -> None:
    groups, mini = source.count("data.train_batch_size"), source.count(f"{ACTOR}.ppo_mini_batch_size")
    found.write("learner.groups_per_step", groups, source.origin("data.train_batch_size"))
    parts = max(1, -(-groups // mini))
    if parts > 1:
        origin = source.origin("data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size")
        found.write("learner.mini_batches", parts, origin)
    longest = source.count("data.max_prompt_length") + source.count("data.max_response_length")
    spread = source.count(f"{ACTOR}.ulysses_sequence_parallel_size")
    if spread > 1:
        found.write("learner.sequence_parallel", spread, source.origin(f"{ACTOR}.ulysses_sequence_parallel_size"))
    rows, tokens = f"{ACTOR}.ppo_micro_batch_size_per_gpu", f"{ACTOR}.ppo_max_token_len_per_gpu"
    if source.value(f"{ACTOR}.use_dynamic_bsz") or not source.number(rows):
        most, origin = source.count(tokens) * spread, source.origin(tokens)
    else:
        most, origin = source.count(rows) * longest, f"{source.origin(rows)} rows of {longest} tokens"
    found.write("learner.micro_batch_tokens", max(most, longest), origin)
    if not source.has("trainer.v1.sampler.max_off_policy_threshold"):
        found.write("learner.max_staleness", 1, "verl takes turns; one step of age lets both sides work at once")
    offloads = [f"{ACTOR}.fsdp_config.{part}_offload" for part in ("param", "optimizer")]
    if any(source.value(name) is True for name in offloads):
        found.write("learner.execution.offload", True, source.origin(*offloads))


def _optimizer(source: Source, found: Findings, steps: int | None) -> None:
    write_warmup(source, f"{OPTIM}.lr_warmup_steps", f"{OPTIM}.lr_warmup_steps_ratio", steps, found)
    name = source.first(f"{OPTIM}.warmup_style", f"{OPTIM}.lr_scheduler_type")
    name = name if source.value(name) is not None else f"{OPTIM}.lr_scheduler_type"
    schedule = source.value(name)
    if schedule in verl.SCHEDULES:
        found.write("learner.optimizer.decay", verl.SCHEDULES[schedule], source.origin(name))
    else:
        found.leave(source.setting(name), "the rate is constant, linear or a cosine: learner.optimizer.decay")


def _adapters(source: Source, found: Findings) -> None:
    if not source.number(f"{MODEL}.lora_rank"):
        return
    alpha, targets = source.number(f"{MODEL}.lora_alpha"), source.value(f"{MODEL}.target_modules")
    found.write("learner.lora.alpha", float(alpha or 16), source.origin(f"{MODEL}.lora_alpha"))
    if isinstance(targets, list):
        found.write("learner.lora.targets", targets, source.origin(f"{MODEL}.target_modules"))
    elif targets not in (None, "all-linear"):
        found.write("learner.lora.targets", [targets], source.origin(f"{MODEL}.target_modules"))


def _engine(source: Source, found: Findings) -> None:
    name, tensor = f"{ROLLOUT}.name", f"{ROLLOUT}.tensor_model_parallel_size"
    engine = source.value(name)
    known = {"vllm": "vllm", "sglang": "sglang", "hf": "torch"}
    if engine in known:
        found.write("rollout.engine", known[engine], source.origin(name))
    else:
        found.leave(source.setting(name), "engines are vllm, sglang and torch; torch is taken")
    serves = engine in ("vllm", "sglang")
    per_node, nodes = source.count("trainer.n_gpus_per_node"), source.count("trainer.nnodes")
    total = per_node * nodes
    parallel = min(source.count(tensor), total) if serves else 1
    origin = source.origin("trainer.n_gpus_per_node", "trainer.nnodes", tensor)
    if parallel > 1 and total == parallel:
        found.leave(source.setting(tensor), f"of {total} GPUs the learner needs some; a server has half of them")
        parallel = max(1, total // 2)
    write_gpus(Gpus(total, total, shared=True, nodes=nodes), parallel, origin, found)
    if engine == "vllm":
        _server_arguments(source, found)


def _server_arguments(source: Source, found: Findings) -> None:
    batched, eager = f"{ROLLOUT}.max_num_batched_tokens", f"{ROLLOUT}.enforce_eager"
    arguments = []
    if source.number(batched):
        arguments += ["--max-num-batched-tokens", str(source.count(batched))]
    if source.value(eager) is True:
        arguments.append("--enforce-eager")
    if arguments:
        found.write("rollout.server.args", arguments, source.origin(batched, eager))


def _evaluation(source: Source, found: Findings) -> None:
    for name, key in (("trainer.save_freq", "checkpoint.every"), ("trainer.test_freq", "eval.every")):
        every = source.number(name)
        if every is not None and every > 0:
            found.write(key, int(every), source.origin(name))
        elif source.has(name):
            found.leave(source.setting(name), f"it is never off; {key} is as by default")
    samples, warm = f"{ROLLOUT}.val_kwargs.n", f"{ROLLOUT}.val_kwargs.temperature"
    if not source.value(f"{ROLLOUT}.val_kwargs.do_sample") or not source.number(warm):
        if source.count(samples) > 1:
            found.leave(source.setting(samples), "greedy answers to one prompt are all the same")
        return
    found.write("eval.temperature", source.value(warm), source.origin(warm))
    if source.count(samples) > 1:
        found.write("eval.samples", source.count(samples), source.origin(samples))
