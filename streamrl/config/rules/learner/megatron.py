"""The rules about the learner's backend and `[learner.megatron]`. Pure: a configuration in, problems out.

What a model's sizes decide is in `estimates.megatron`.
"""

from collections.abc import Iterator

from streamrl.config.estimates.megatron import ranks_fit
from streamrl.config.estimates.sizes import optimizers
from streamrl.config.problems import Problem
from streamrl.config.rules.learner.critic import unused_keys
from streamrl.config.schema.run import Config
from streamrl.config.toml_text import quoted

_BACKEND = "learner.backend"
_TABLE = "learner.megatron"
_OTHERWISE = f'set {_BACKEND} = "fsdp"'


def layout_of_another_backend(config: Config) -> Iterator[Problem]:
    learner = config.learner
    if learner.backend != "megatron":
        what = f'it is of {_BACKEND} = "megatron"; set that, or leave this key out'
        yield from unused_keys(learner.megatron, _TABLE, what, (_BACKEND,))


def layout_makes_sense(config: Config) -> Iterator[Problem]:
    """By itself, and with the number of ranks."""
    megatron = config.learner.megatron
    if config.learner.backend != "megatron":
        return
    if megatron.virtual_pipeline > 1 and megatron.pipeline_parallel == 1:
        what = "model chunks take turns over several stages, and there is one; set 1, or pipeline_parallel above 1"
        involves = (f"{_TABLE}.pipeline_parallel",)
        yield _problem("virtual_pipeline", what, megatron.virtual_pipeline, involves)
    if megatron.sequence_parallel and megatron.tensor_parallel == 1:
        what = (
            "tokens are spread over the tensor parallel ranks, and there is one; set false, or tensor_parallel above 1"
        )
        yield _problem("sequence_parallel", what, True, (f"{_TABLE}.tensor_parallel",))
    if megatron.precision == "bfloat16" and config.model.dtype == "float32":
        what = 'gradients of a model in float32 are float32; set "float32", or model.dtype = "bfloat16"'
        yield _problem("precision", what, megatron.precision, ("model.dtype",))
    elif megatron.precision == "bfloat16" and config.learner.lora.rank:
        what = 'gradients of adapters are float32; set "float32", or learner.lora.rank = 0'
        yield _problem("precision", what, megatron.precision, ("learner.lora.rank",))
    yield from ranks_fit(megatron, config.learner.num_workers)


def what_is_of_fsdp(config: Config) -> Iterator[Problem]:
    """Keys of the other backend that have one of their own here, or none."""
    learner = config.learner
    if learner.backend != "megatron":
        return
    if learner.tensor_parallel > 1:
        what = f'under "megatron" it is {_TABLE}.tensor_parallel; set 1'
        yield _of_backend("learner.tensor_parallel", what, learner.tensor_parallel)
    if learner.sequence_parallel > 1:
        what = f'under "megatron" it is {_TABLE}.context_parallel; set 1'
        yield _of_backend("learner.sequence_parallel", what, learner.sequence_parallel)
    if learner.shares is not None:
        what = 'under "megatron" gradients of all shares are added at once, in no order of shares; leave this key out'
        yield _of_backend("learner.shares", what, learner.shares)
    what = f'"megatron" computes layers in its own way ({_TABLE}.recompute says what of them again); leave this key out'
    yield from unused_keys(learner.execution, "learner.execution", what, (_BACKEND,))


def what_megatron_cannot_yet(config: Config) -> Iterator[Problem]:
    """Each of these is there under the other backend."""
    if config.learner.backend == "megatron":
        for table, optimizer in optimizers(config).items():
            if optimizer.kind != "adamw":
                what = f'"megatron" keeps moments in float32; set "adamw", or {_OTHERWISE}'
                yield _of_backend(f"{table}.kind", what, optimizer.kind)


def _problem(key: str, what: str, given: object, involves: tuple[str, ...] = ()) -> Problem:
    return Problem(key=f"{_TABLE}.{key}", what=what, given=quoted(given), involves=involves)


def _of_backend(key: str, what: str, given: object) -> Problem:
    return Problem(key=key, what=what, given=quoted(given), involves=(_BACKEND,))


MEGATRON_RULES = (
    layout_of_another_backend,
    layout_makes_sense,
    what_is_of_fsdp,
    what_megatron_cannot_yet,
)
