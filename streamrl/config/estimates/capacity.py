"""The rules about lengths and bytes: context, packs, queue, KV cache. Pure.

`check_capacity` is called twice: by a check, with what is known of the prompts without loading the task, and
at the start of a run, with the true longest prompt.
"""

from collections.abc import Iterator

from streamrl.config.estimates import megatron
from streamrl.config.estimates import sizes as limits
from streamrl.config.estimates.model_facts import ModelFacts
from streamrl.config.estimates.sizes import human_bytes
from streamrl.config.known import EXPERT_TYPES, LINEAR_LAYERS, MIXING_TYPES, MODEL_TYPES
from streamrl.config.problems import Problem
from streamrl.config.schema.run import Config
from streamrl.config.suggest import nearest_value
from streamrl.config.toml_text import quoted

_LENGTH = "rollout.sampling.max_new_tokens"
_MOST = "rollout.autoscaling.max_replicas"


def check_capacity(config: Config, model: ModelFacts | None, prompt_tokens: int) -> list[Problem]:
    """Every rule of length or bytes that is broken when the longest prompt has `prompt_tokens`. Rules about a
    model that could not be read are left out."""
    problems = [*_rows_fit(config, prompt_tokens), *_queue_fits(config, prompt_tokens), *_log_fits(config)]
    if model is not None:
        problems += [*_checkpoints_fit(config, model), *_versions_fit(config, model)]
        problems += [*_family(config, model), *_context(config, model, prompt_tokens), *_heads_fit(config, model)]
        problems += _kv_cache(config, model, prompt_tokens)
        problems += _reward_model(config, model, prompt_tokens)
        problems += [*_targets(config, model), *_experts(config, model)]
        problems += _routes_fit(config, model, prompt_tokens)
        if config.learner.backend == "megatron":
            problems += megatron.model_fits(config, model)
    return problems


def _rows_fit(config: Config, prompt_tokens: int) -> Iterator[Problem]:
    row = limits.longest_row(config, prompt_tokens)
    if config.learner.micro_batch_tokens < row:
        what = f"a rollout of {row} tokens (prompt + {_LENGTH}) fits no pack; set at least {row}"
        given = str(config.learner.micro_batch_tokens)
        yield Problem(key="learner.micro_batch_tokens", what=what, given=given, involves=(_LENGTH,))
    needed = 2 * limits.worst_row_bytes(config, prompt_tokens)
    if config.queue.segment_bytes < needed:
        what = f"a segment must hold the longest rollout ({row} tokens); set at least {needed}"
        given = str(config.queue.segment_bytes)
        yield Problem(key="queue.segment_bytes", what=what, given=given, involves=(_LENGTH,))
    yield from _scores_fit(config, needed)


def _routes_fit(config: Config, model: ModelFacts, prompt_tokens: int) -> Iterator[Problem]:
    """Routes of experts are a large part of a row."""
    routes = limits.route_bytes(config, model, prompt_tokens)
    needed = 2 * limits.worst_row_bytes(config, prompt_tokens, routes)
    if routes and config.queue.segment_bytes < needed:
        what = f"a segment must hold the longest rollout with its routes ({human_bytes(routes)}); set at least {needed}"
        involves = ("learner.router_replay", _LENGTH)
        yield Problem(key="queue.segment_bytes", what=what, given=str(config.queue.segment_bytes), involves=involves)


def _scores_fit(config: Config, longest: int) -> Iterator[Problem]:
    """The verdicts on one hand-out of rollouts go into one frame."""
    rows = config.reward.batch_size * config.reward.workers
    needed = limits.FRAME_BYTES + rows * limits.SCORE_BYTES
    if longest <= config.queue.segment_bytes < needed:
        what = f"a segment must hold the scores of reward.batch_size x reward.workers rollouts; set at least {needed}"
        given = str(config.queue.segment_bytes)
        involves = ("reward.batch_size", "reward.workers")
        yield Problem(key="queue.segment_bytes", what=what, given=given, involves=involves)


def _reward_model(config: Config, model: ModelFacts, prompt_tokens: int) -> Iterator[Problem]:
    """The reward model can score the longest rollout, in the memory of its process."""
    if model.reward_parameters is None:
        return
    row, most = limits.longest_row(config, prompt_tokens), limits.reward_tokens(config, model)
    if most is not None and row > most:
        own = config.reward.model
        name = "path" if own.max_tokens is None else "max_tokens"
        what = f"a rollout may have {row} tokens, and the reward model takes {most}; lower {_LENGTH}"
        yield Problem(key=f"reward.model.{name}", what=what, given=quoted(getattr(own, name)), involves=(_LENGTH,))
    needed = limits.scoring_child_bytes(model)
    if config.reward.memory_bytes < needed:
        what = f"a process that scores with the reward model does not start in so little; set at least {needed}"
        given = str(config.reward.memory_bytes)
        yield Problem(key="reward.memory_bytes", what=what, given=given, involves=("reward.model.path",))


def _queue_fits(config: Config, prompt_tokens: int) -> Iterator[Problem]:
    steps = config.learner.max_staleness + 2
    needed = steps * limits.step_bytes(config, prompt_tokens)
    if config.queue.byte_budget < needed:
        what = (
            f"must hold max_staleness + 2 = {steps} steps of {config.rollouts_per_step} rollouts at full "
            f"length; set at least {needed}"
        )
        involves = ("learner.max_staleness", "learner.groups_per_step", "rollout.group_size", _LENGTH)
        given = str(config.queue.byte_budget)
        yield Problem(key="queue.byte_budget", what=what, given=given, involves=involves)


def _log_fits(config: Config) -> Iterator[Problem]:
    """The files that are written now cannot go, nor those with rows that are not covered yet."""
    writers, waiting = limits.log_writers(config), limits.waiting_bytes(config)
    journals = limits.JOURNAL_FILES * config.rollout.most_replicas if config.journals_partials else 0
    needed = config.queue.byte_budget + waiting + (2 * writers + journals) * config.queue.segment_bytes
    if config.queue.disk_budget < needed:
        more = f" and {journals} of the replicas' journals" if journals else ""
        who = "replicas, the reward stage, the gateway's two" if waiting else "replicas and the reward stage"
        held = "queue.byte_budget, gateway.waiting_bytes" if waiting else "queue.byte_budget"
        what = f"must hold {held} and two files of each of {writers} writers ({who}){more}; set at least {needed}"
        involves = ("queue.byte_budget", "queue.segment_bytes", "rollout.replicas", _MOST, "gateway.waiting_bytes")
        yield Problem(key="queue.disk_budget", what=what, given=str(config.queue.disk_budget), involves=involves)
    parts = limits.log_parts(config)
    needed = 10 * parts * limits.LEAST_LOG_BYTES
    if config.observe.log_bytes < needed:
        least = human_bytes(limits.LEAST_LOG_BYTES)
        what = f"leaves the logs of {parts} parts less than {least} each; set at least {needed}"
        given, others = str(config.observe.log_bytes), ("rollout.replicas", _MOST, "learner.num_workers")
        yield Problem(key="observe.log_bytes", what=what, given=given, involves=others)


def _checkpoints_fit(config: Config, model: ModelFacts) -> Iterator[Problem]:
    one, count = limits.checkpoint_bytes(config, model), config.checkpoint.keep + 1
    budget = config.checkpoint.byte_budget
    if budget is not None and budget < count * one:
        what = (
            f"must hold keep + 1 = {count} checkpoints of {human_bytes(one)} (weights and two moments in float32); set "
            f"at least {count * one}, or a lower checkpoint.keep"
        )
        yield Problem(key="checkpoint.byte_budget", what=what, given=str(budget), involves=("checkpoint.keep",))


def _versions_fit(config: Config, model: ModelFacts) -> Iterator[Problem]:
    one, base = limits.version_bytes(config, model), limits.base_bytes(config, model)
    budget = config.weights.byte_budget
    # A part more, for the gaps between tensors.
    needed = 2 * (one + base) + (one + base) // 8
    if budget is not None and budget < needed:
        bases = f", and two bases of {human_bytes(base)}, this learner's and the one's before it" if base else ""
        what = (
            f"must hold two versions of {human_bytes(one)}, the newest and the one that is being written{bases}; set "
            f"at least {needed}"
        )
        yield Problem(
            key="weights.byte_budget", what=what, given=str(budget), involves=("model.dtype", "learner.lora.rank")
        )


def _family(config: Config, model: ModelFacts) -> Iterator[Problem]:
    if config.rollout.engine != "scripted" and model.model_type in MIXING_TYPES:
        what = (
            f'models of type "{model.model_type}" mix tokens outside of attention in a way that neither the torch '
            "engine nor the learner can pack"
        )
        known = f"other decoders ({', '.join(MODEL_TYPES)}, mistral, gemma3_text, qwen3_5_text, lfm2, ...)"
        yield Problem(key="model.path", what=what, allowed=known, involves=("rollout.engine",))


def _targets(config: Config, model: ModelFacts) -> Iterator[Problem]:
    """Each is a linear layer of the decoder, where its family's are known here."""
    if model.model_type not in MODEL_TYPES:
        return
    for name in dict.fromkeys(config.learner.lora.targets or ()):
        if name not in LINEAR_LAYERS:
            near = nearest_value(name, list(LINEAR_LAYERS))
            yield Problem(
                key="learner.lora.targets",
                what="no linear layer of the decoder has this name",
                given=quoted(name),
                allowed=", ".join(map(quoted, LINEAR_LAYERS)),
                suggestion=quoted(near) if near else "",
            )


def _experts(config: Config, model: ModelFacts) -> Iterator[Problem]:
    """What is done with experts is of a model that has some, and whose routers are known."""
    learner = config.learner
    if model.model_type in EXPERT_TYPES:
        return
    what = f"the learner does not know the routers of {model.model_type}"
    if not model.num_experts:
        what = f"the model ({model.model_type}) has no experts"
    known = f"a model of type {', '.join(EXPERT_TYPES)}"
    if learner.router_aux_loss_coef:
        given = str(learner.router_aux_loss_coef)
        yield Problem(key="learner.router_aux_loss_coef", what=what, given=given, allowed=f"0, or {known}")
    if learner.router_replay:
        yield Problem(key="learner.router_replay", what=what, given="true", allowed=f"false, or {known}")


def _heads_fit(config: Config, model: ModelFacts) -> Iterator[Problem]:
    """A pack that is spread over ranks is attended to by heads."""
    learner = config.learner
    if learner.sequence_parallel > 1 and model.num_heads % (learner.sequence_parallel * learner.tensor_parallel):
        beside = f" / tensor_parallel = {learner.tensor_parallel}" if learner.tensor_parallel > 1 else ""
        what = f"no divisor of the model's num_attention_heads = {model.num_heads}{beside}; set one"
        given, involves = str(learner.sequence_parallel), ("learner.tensor_parallel",)
        yield Problem(key="learner.sequence_parallel", what=what, given=given, involves=involves)


def _context(config: Config, model: ModelFacts, prompt_tokens: int) -> Iterator[Problem]:
    row = limits.longest_row(config, prompt_tokens)
    if model.context is not None and row > model.context:
        most = model.context - prompt_tokens
        way_out = f"set at most {most}" if most > 0 else "take a model with a longer context"
        what = f"prompt ({prompt_tokens}) + completion pass the model's context of {model.context} tokens; {way_out}"
        given = str(config.rollout.sampling.max_new_tokens)
        if config.plays_episodes:
            given, key = str(row), "environment.max_tokens"
            what = f"no branch of an episode is longer than the model's context; set at most {model.context}"
            yield Problem(key=key, what=what, given=given, involves=("model.preset", "model.path"))
            return
        yield Problem(key=_LENGTH, what=what, given=given, involves=("model.preset", "model.path", "task.name"))


def _kv_cache(config: Config, model: ModelFacts, prompt_tokens: int) -> Iterator[Problem]:
    rows = limits.INVARIANT_ROWS if config.rollout.batch_invariant else 1
    needed = rows * limits.kv_request_bytes(config, model, prompt_tokens)
    if config.rollout.kv_bytes < needed:
        requests = f"{rows} requests" if rows > 1 else "one request"
        what = (
            f"too little for {requests} at full length ({human_bytes(needed)}); set at least {needed}, "
            f"or a lower {_LENGTH}"
        )
        given = str(config.rollout.kv_bytes)
        involves = (_LENGTH, "rollout.deterministic", "model.dtype")
        yield Problem(key="rollout.kv_bytes", what=what, given=given, involves=involves)
