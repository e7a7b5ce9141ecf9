"""The rules that span several keys, or that a type cannot say. Pure: a configuration in, problems out.

Each rule is one function that yields what is wrong and the way out; `check_rules` runs them all. What depends
on lengths and bytes is in `capacity`.
"""

import re
from collections.abc import Callable, Iterable, Iterator

from streamrl.config.data_names import names_data
from streamrl.config.estimates.model_presets import PRESETS
from streamrl.config.estimates.sizes import INVARIANT_ROWS
from streamrl.config.known import REWARDS, TASK_LONGEST_PROMPT
from streamrl.config.problems import Problem
from streamrl.config.references import is_reference, meant_reference
from streamrl.config.rules.data import DATA_RULES
from streamrl.config.rules.environment import ENVIRONMENT_RULES
from streamrl.config.rules.gateway import GATEWAY_RULES
from streamrl.config.rules.learner.algorithm import ALGORITHM_RULES
from streamrl.config.rules.learner.components import COMPONENT_RULES
from streamrl.config.rules.learner.critic import CRITIC_RULES
from streamrl.config.rules.learner.filter import FILTER_RULES
from streamrl.config.rules.learner.lora import adapters_of_a_warm_model, adapters_without_rank, known_targets
from streamrl.config.rules.learner.megatron import MEGATRON_RULES
from streamrl.config.rules.learner.overlong import OVERLONG_RULES
from streamrl.config.rules.learner.prime import PRIME_RULES
from streamrl.config.rules.learner.ranks import RANK_RULES
from streamrl.config.rules.learner.router_replay import REPLAY_RULES
from streamrl.config.rules.reward import REWARD_RULES
from streamrl.config.rules.rollout.autoscaling import AUTOSCALING_RULES
from streamrl.config.rules.rollout.placement import PLACEMENT_RULES
from streamrl.config.rules.rollout.server import (
    only_for_servers,
    server_arguments,
    server_endpoint,
    servers_share_batches,
)
from streamrl.config.rules.sandbox import SANDBOX_RULES
from streamrl.config.rules.storage import checkpoint_folder
from streamrl.config.rules.streams import STREAM_RULES
from streamrl.config.rules.weights import collective_backend, shared_folder
from streamrl.config.schema.run import Config
from streamrl.config.suggest import nearest_value
from streamrl.config.toml_text import quoted

_ADDRESS = re.compile(r"([A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\]):(\d{1,5})")
_CHILD_BYTES = 256 * 2**20  # a Python child with numpy takes 100 MB of address space before it does anything

Rule = Callable[[Config], Iterator[Problem]]


def check_rules(config: Config) -> list[Problem]:
    """Every rule that `config` breaks."""
    return [problem for rule in RULES for problem in rule(config)]


def _one_model(config: Config) -> Iterator[Problem]:
    preset, path = config.model.preset, config.model.path
    if preset is None and path is None:
        what = f"no model: set exactly one of model.preset ({_names(PRESETS)}) and model.path (a folder)"
        yield Problem(key="model", what=what)
    elif preset is not None and path is not None:
        what = 'two models: set exactly one of model.preset and model.path ("none" unsets the other)'
        yield Problem(key="model.path", what=what, given=quoted(path), involves=("model.preset",))
    if preset is not None and preset not in PRESETS:
        yield _unknown("model.preset", "no such preset", preset, PRESETS)


def _known_task(config: Config) -> Iterator[Problem]:
    name = config.task.name
    if name not in TASK_LONGEST_PROMPT and not is_reference(name) and not names_data(name):
        yield _unknown("task.name", "no such task", name, TASK_LONGEST_PROMPT, "`module:Class`")


def _known_reward(config: Config) -> Iterator[Problem]:
    several = config.reward.functions is not None
    for name in config.reward.functions or [config.reward.function]:
        if name not in REWARDS and not is_reference(name):
            key = "reward.functions" if several else "reward.function"
            yield _unknown(key, "no such reward", name, REWARDS, "`module:function`")


def _both_splits(config: Config) -> Iterator[Problem]:
    share = config.task.held_out
    if not 0.0 < share < 1.0:
        left = "train on" if share else "evaluate on"
        yield Problem(
            key="task.held_out",
            what=f"nothing left to {left}",
            given=quoted(share),
            allowed="a number above 0 and below 1",
        )


def _replayable_sampling(config: Config) -> Iterator[Problem]:
    sampling = config.rollout.sampling
    for name, off in (("top_p", 1.0), ("top_k", 0), ("min_p", 0.0)):
        value = getattr(sampling, name)
        if value != off:
            yield Problem(
                key=f"rollout.sampling.{name}",
                what=f"the learner cannot replay a truncated distribution yet; set {off}, which is off",
                given=quoted(value),
            )


def _deterministic_mode(config: Config) -> Iterator[Problem]:
    rollout = config.rollout
    if not rollout.batch_invariant or rollout.is_server:
        return
    mode = ("rollout.deterministic",)
    way_out = "or set rollout.deterministic = false"
    if rollout.threads != 1 and rollout.device == "cpu":
        what = f"batch-invariant sampling needs one intra-op thread; set 1, {way_out}"
        yield Problem(key="rollout.threads", what=what, given=str(rollout.threads), involves=mode)
    if rollout.slots < INVARIANT_ROWS:
        what = f"batch-invariant sampling needs at least {INVARIANT_ROWS} slots; set them, {way_out}"
        yield Problem(key="rollout.slots", what=what, given=str(rollout.slots), involves=mode)


def _synchronous_mode(config: Config) -> Iterator[Problem]:
    rollout = config.rollout
    if config.learner.max_staleness == 0 and (rollout.is_server or not rollout.batch_invariant):
        needed = 'take rollout.engine = "torch"' if rollout.is_server else "set rollout.deterministic = true"
        what = f"0 means the synchronous loop, which is bit-equal by contract; {needed}, or allow a staleness above 0"
        involves = ("rollout.deterministic", "rollout.engine")
        yield Problem(key="learner.max_staleness", what=what, given="0", involves=involves)


def _algorithm_ranges(config: Config) -> Iterator[Problem]:
    if config.learner.algorithm.clip_low >= 1.0:
        what = "the ratio is clipped below at 1 - clip_low, which must stay above 0; set less than 1"
        yield Problem(key="learner.algorithm.clip_low", what=what, given=quoted(config.learner.algorithm.clip_low))
    if max(config.learner.optimizer.betas) >= 1.0:
        given = quoted(config.learner.optimizer.betas)
        what = "a beta of 1 never forgets, and the bias correction divides by zero; set both below 1"
        yield Problem(key="learner.optimizer.betas", what=what, given=given)


def _warmup(config: Config) -> Iterator[Problem]:
    warmup = config.warmup
    if warmup.max_steps and warmup.target_score == 0.0:
        what = "the warm-up stops before its first step; set a score above 0, or warmup.max_steps = 0"
        yield Problem(key="warmup.target_score", what=what, given="0", involves=("warmup.max_steps",))
    if warmup.max_steps and warmup.eval_every > warmup.max_steps:
        what = f"the score is never looked at within warmup.max_steps = {warmup.max_steps}; set at most that"
        given = str(warmup.eval_every)
        yield Problem(key="warmup.eval_every", what=what, given=given, involves=("warmup.max_steps",))


def _scripted_faults(config: Config) -> Iterator[Problem]:
    scripted = config.rollout.scripted
    if scripted.error_rate + scripted.nan_rate > 1.0:
        yield Problem(
            key="rollout.scripted.nan_rate",
            what=f"with error_rate = {scripted.error_rate:g} it passes 1; keep the sum at most 1",
            given=quoted(scripted.nan_rate),
            involves=("rollout.scripted.error_rate",),
        )


def _scripted_drift(config: Config) -> Iterator[Problem]:
    rollout = config.rollout
    biased, replicas = rollout.scripted.biased_replica, rollout.autoscaling.max_replicas or rollout.replicas
    if biased is not None and biased >= replicas:
        yield Problem(
            key="rollout.scripted.biased_replica",
            what=f"there is no replica of this number; the last of {replicas} is {replicas - 1}",
            given=quoted(biased),
            involves=("rollout.replicas", "rollout.autoscaling.max_replicas"),
        )


def _reward_child(config: Config) -> Iterator[Problem]:
    reward = config.reward
    if reward.memory_bytes < _CHILD_BYTES:
        what = f"a scoring process does not start in so little; set at least {_CHILD_BYTES}"
        yield Problem(key="reward.memory_bytes", what=what, given=str(reward.memory_bytes))
    if reward.timeout_s >= config.deadlines.rollout_s:
        what = f"one score may take all of deadlines.rollout_s = {config.deadlines.rollout_s:g}; set it lower"
        given = quoted(reward.timeout_s)
        yield Problem(key="reward.timeout_s", what=what, given=given, involves=("deadlines.rollout_s",))


def _ray_address(config: Config) -> Iterator[Problem]:
    address = config.ray.address
    found = _ADDRESS.fullmatch(address)
    if address not in ("local", "auto") and not (found and 1 <= int(found[2]) <= 65535):
        what = "not an address; a Ray that merely happens to run here is never joined"
        yield Problem(
            key="ray.address",
            what=what,
            given=quoted(address),
            allowed='"local", "host:port" of a cluster, or "auto" in a Ray job',
        )


def _unknown(key: str, what: str, name: str, known: Iterable[str], form: str = "") -> Problem:
    near = nearest_value(name, list(known))
    if form:
        near = near or meant_reference(name, form.strip("`").partition(":")[2])
    allowed = _names(known) + (f", or {form} of your own" if form else "")
    return Problem(key=key, what=what, given=quoted(name), allowed=allowed, suggestion=quoted(near) if near else "")


def _spans_for_otel(config: Config) -> Iterator[Problem]:
    if "otel" in config.observe.trackers and not config.observe.trace:
        what = "it sends the spans that observe.trace records; set that to true, or leave otel out"
        yield Problem(key="observe.trackers", what=what, given='"otel"', involves=("observe.trace",))


def _names(known: Iterable[str]) -> str:
    return ", ".join(quoted(name) for name in known)


RULES: tuple[Rule, ...] = (
    _one_model,
    _known_task,
    _known_reward,
    _both_splits,
    *DATA_RULES,
    _replayable_sampling,
    _deterministic_mode,
    _synchronous_mode,
    _algorithm_ranges,
    *ALGORITHM_RULES,
    *COMPONENT_RULES,
    *CRITIC_RULES,
    *PRIME_RULES,
    *FILTER_RULES,
    *OVERLONG_RULES,
    _warmup,
    *RANK_RULES,
    *MEGATRON_RULES,
    *REPLAY_RULES,
    _scripted_faults,
    _scripted_drift,
    _reward_child,
    *REWARD_RULES,
    *ENVIRONMENT_RULES,
    *SANDBOX_RULES,
    _ray_address,
    _spans_for_otel,
    *PLACEMENT_RULES,
    only_for_servers,
    servers_share_batches,
    server_endpoint,
    shared_folder,
    checkpoint_folder,
    collective_backend,
    server_arguments,
    adapters_without_rank,
    known_targets,
    adapters_of_a_warm_model,
    *GATEWAY_RULES,
    *STREAM_RULES,
    *AUTOSCALING_RULES,
)
