"""What verl makes of rewards, and how we say it: advantage, critic, divergence, loss, correction. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from streamrl.config.migration import verl_table as verl
from streamrl.config.migration.table import Findings, Source
from streamrl.config.migration.verl_table import ACTOR, ALGORITHM, CRITIC, MODEL, ROLLOUT


def convert_loss(source: Source, found: Findings) -> None:
    """The keys of `[learner.algorithm]` and `[learner.critic]`."""
    _advantage(source, found)
    _divergence(source, found)
    _loss(source, found)
    _correction(source, found)


def _advantage(source: Source, found: Findings) -> None:
    name, scaled = f"{ALGORITHM}.adv_estimator", f"{ALGORITHM}.norm_adv_by_std_in_grpo"
    given = source.value(name)
    advantage = verl.ADVANTAGES.get(given)
    if advantage is None:
        found.leave(source.setting(name), "no such advantage; docs/guides/algorithms.md has those that there are")
        return
    if advantage == "grpo" and source.value(scaled) is False:
        found.write("learner.algorithm.advantage", "dr_grpo", source.origin(name, scaled))
        return
    found.write("learner.algorithm.advantage", advantage, source.origin(name))
    if advantage == "remax":
        size = source.count(f"{ROLLOUT}.n") + 1
        found.write("rollout.group_size", size, "verl's greedy rollout is beside the group; here it is the last of it")
    if advantage == "gae":
        _critic(source, found)


def _critic(source: Source, found: Findings) -> None:
    found.write("learner.critic.gamma", float(source.value(f"{ALGORITHM}.gamma")), source.origin(f"{ALGORITHM}.gamma"))
    for key in ("policy_lambda", "value_lambda"):
        value = float(source.value(f"{ALGORITHM}.lam"))
        found.write(f"learner.critic.{key}", value, source.origin(f"{ALGORITHM}.lam"))
    for part, key in (("lr", "lr"), ("weight_decay", "weight_decay"), ("betas", "betas")):
        name = f"{CRITIC}.optim.{part}"
        found.write(f"learner.critic.optimizer.{key}", source.value(name), source.origin(name))
    found.write("learner.critic.optimizer.decay", "constant", "verl's default of critic.optim.lr_scheduler_type")
    warmup = source.number(f"{CRITIC}.optim.lr_warmup_steps") or 0
    origin = source.origin(f"{CRITIC}.optim.lr_warmup_steps")
    found.write("learner.critic.optimizer.warmup_steps", max(0, int(warmup)), origin)
    if source.number("trainer.critic_warmup"):
        found.write(
            "learner.critic.warmup_steps", source.value("trainer.critic_warmup"), source.origin("trainer.critic_warmup")
        )
    path = source.value(f"{CRITIC}.model.path")
    if path and path != source.value(f"{MODEL}.path"):
        found.write("learner.critic.path", path, source.origin(f"{CRITIC}.model.path"))


def _divergence(source: Source, found: Findings) -> None:
    in_loss, in_reward = source.value(f"{ACTOR}.use_kl_loss"), source.value(f"{ALGORITHM}.use_kl_in_reward")
    if in_loss:
        _kl(source, found, "loss", f"{ACTOR}.kl_loss_coef", f"{ACTOR}.kl_loss_type", verl.ESTIMATES_IN_LOSS)
        if in_reward:
            what = "the divergence is paid in one place; that of the loss is converted"
            found.leave(source.setting(f"{ALGORITHM}.use_kl_in_reward"), what)
    elif in_reward:
        names = f"{ALGORITHM}.kl_ctrl.kl_coef", f"{ALGORITHM}.kl_penalty"
        _kl(source, found, "reward", *names, verl.ESTIMATES_IN_REWARD)


def _kl(
    source: Source, found: Findings, place: str, coefficient: str, estimate: str, estimates: Mapping[Any, Any]
) -> None:
    if not source.number(coefficient):
        return
    found.write("learner.algorithm.kl_coef", source.value(coefficient), source.origin(coefficient))
    found.write("learner.algorithm.kl_in", place, source.origin(coefficient))
    given = source.value(estimate)
    if given in estimates:
        found.write("learner.algorithm.kl_estimator", estimates[given], source.origin(estimate))
    else:
        found.leave(source.setting(estimate), f"no such estimate in the {place}: learner.algorithm.kl_estimator")
    if place == "loss" and given in ("kl", "k1"):
        found.note("the gradient of verl's `kl` in the loss is 0 in the mean; k1+ has that of the divergence")


def _loss(source: Source, found: Findings) -> None:
    low, high = (source.first(f"{ACTOR}.clip_ratio_{end}", f"{ACTOR}.clip_ratio") for end in ("low", "high"))
    name = f"{ACTOR}.policy_loss.loss_mode"
    mode = source.value(name)
    loss = verl.LOSSES.get(mode)
    if loss is None:
        found.leave(source.setting(name), "no such loss; docs/guides/algorithms.md has those that there are")
        return
    found.write("learner.algorithm.loss", loss, source.origin(name))
    found.write("learner.algorithm.clip_low", source.value(low), source.origin(low))
    found.write("learner.algorithm.clip_high", source.value(high), source.origin(high))
    if loss == "ppo" and source.number(f"{ACTOR}.clip_ratio_c"):
        found.write(
            "learner.algorithm.dual_clip", source.value(f"{ACTOR}.clip_ratio_c"), source.origin(f"{ACTOR}.clip_ratio_c")
        )
    if loss == "dppo":
        found.write("learner.algorithm.divergence", mode.removeprefix("dppo_"), source.origin(name))
    for key, ours in _OF_LOSSES.get(loss, {}).items():
        if source.has(f"{ACTOR}.{key}"):
            found.write(f"learner.algorithm.{ours}", source.value(f"{ACTOR}.{key}"), source.origin(f"{ACTOR}.{key}"))
    _aggregation(source, found, loss)


_OF_LOSSES: Final[Mapping[str, Mapping[str, str]]] = {
    "sapo": {"tau_pos": "sapo_tau_positive", "tau_neg": "sapo_tau_negative"},
    "clip_cov": {
        "policy_loss.clip_cov_ratio": "cov_share",
        "policy_loss.clip_cov_lb": "cov_low",
        "policy_loss.clip_cov_ub": "cov_high",
    },
    "kl_cov": {"policy_loss.kl_cov_ratio": "cov_share", "policy_loss.ppo_kl_coef": "cov_kl"},
}


def _aggregation(source: Source, found: Findings, loss: str) -> None:
    name = f"{ACTOR}.loss_agg_mode"
    mode = source.value(name)
    if loss == "gspo":
        found.write(
            "learner.algorithm.aggregation",
            "seq_mean_token_mean",
            "verl's gspo averages each row, whatever else is said",
        )
    elif mode in verl.AGGREGATIONS:
        found.write("learner.algorithm.aggregation", verl.AGGREGATIONS[mode], source.origin(name))
    else:
        found.leave(source.setting(name), "see learner.algorithm.aggregation")
    if mode == "seq-mean-token-sum-norm":
        scale = f"{ACTOR}.loss_scale_factor"
        name = scale if source.number(scale) else "data.max_response_length"
        found.write("learner.algorithm.horizon", source.count(name), source.origin(name))


def _correction(source: Source, found: Findings) -> None:
    """verl computes log-probs again before a step: `recompute`; with `bypass_mode` those of the engine stand."""
    bypass = f"{verl.CORRECTION}.bypass_mode"
    if source.value(bypass) is True:
        found.write("learner.algorithm.proximal", "rollout", source.origin(bypass))
    else:
        found.write("learner.algorithm.proximal", "recompute", "verl computes old_log_prob before a step")
    level, cap = f"{verl.CORRECTION}.rollout_is", f"{verl.CORRECTION}.rollout_is_threshold"
    if source.value(level) in ("token", "sequence"):
        found.write("learner.algorithm.correction", "tis", source.origin(level))
        found.write("learner.algorithm.correction_level", source.value(level), source.origin(level))
    elif source.value(level):
        found.leave(source.setting(level), "weights are of a token or a row: learner.algorithm.correction_level")
    cap = source.first(cap, f"{ACTOR}.tis_imp_ratio_cap")
    if source.number(cap) and source.value(cap) > 0:
        found.write("learner.algorithm.tis_cap", source.value(cap), source.origin(cap))
