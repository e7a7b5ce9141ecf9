"""The rules about adapters, `[learner.lora]`. Pure: a configuration in, problems out."""

from collections.abc import Iterator

from streamrl.config.known import LINEAR_LAYERS
from streamrl.config.problems import Problem
from streamrl.config.schema.run import Config
from streamrl.config.toml_text import quoted

_RANK, _TARGETS = "learner.lora.rank", "learner.lora.targets"


def adapters_without_rank(config: Config) -> Iterator[Problem]:
    """Rank 0 trains all weights; what else is said of adapters would do nothing."""
    lora = config.learner.lora
    for name in ("alpha", "targets"):
        value = getattr(lora, name)
        if not lora.rank and value is not None:
            what = f"there are no adapters while {_RANK} = 0; set a rank, or leave this key out"
            yield Problem(key=f"learner.lora.{name}", what=what, given=quoted(value), involves=(_RANK,))


def known_targets(config: Config) -> Iterator[Problem]:
    """Each is named once. Whether the decoder has it, `capacity` says, which knows the model."""
    targets = config.learner.lora.targets
    if targets is None:
        return
    names = ", ".join(map(quoted, LINEAR_LAYERS))
    if not targets:
        what = "adapters on no layer train nothing; name some, or leave this key out for all of them"
        yield Problem(key=_TARGETS, what=what, given="[]", allowed=names)
    for name in dict.fromkeys(targets):
        if targets.count(name) > 1:
            yield Problem(key=_TARGETS, what="named more than once; a layer has one adapter", given=quoted(name))


def adapters_of_a_warm_model(config: Config) -> Iterator[Problem]:
    """The warm-up trains all weights, and the base of adapters stays as it is."""
    if config.learner.lora.rank and config.warmup.max_steps:
        what = (
            f"a warm-up trains all weights, and {_RANK} > 0 leaves them as they are; set 0, and warm the model up in "
            "a run of its own, whose export is then model.path"
        )
        yield Problem(key="warmup.max_steps", what=what, given=str(config.warmup.max_steps), involves=(_RANK,))
