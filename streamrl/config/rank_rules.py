"""The rules about the learner's ranks, and how they compute. Pure: a configuration in, problems out."""

from collections.abc import Iterator

from streamrl.config.problems import Problem
from streamrl.config.schema import Config

_TENSOR = "learner.tensor_parallel"
_SEQUENCE = "learner.sequence_parallel"


def ranks_have_rows(config: Config) -> Iterator[Problem]:
    ranks, rows = config.learner.data_ranks, config.rollouts_per_step
    if ranks > rows:
        what = f"more ranks than the {rows} rollouts of a step (groups_per_step x group_size)"
        involves = ("learner.groups_per_step", "rollout.group_size")
        yield Problem(key="learner.num_workers", what=what, given=str(config.learner.num_workers), involves=involves)


def shares_fit_the_ranks(config: Config) -> Iterator[Problem]:
    shares, ranks, rows = config.learner.shares, config.learner.data_ranks, config.rollouts_per_step
    if shares is None:
        return
    if shares % ranks:
        what = f"each of the {ranks} ranks takes as many shares; set a multiple of learner.num_workers"
        yield Problem(key="learner.shares", what=what, given=str(shares), involves=("learner.num_workers",))
    if shares > rows:
        what = f"more shares than the {rows} rollouts of a step (groups_per_step x group_size)"
        involves = ("learner.groups_per_step", "rollout.group_size")
        yield Problem(key="learner.shares", what=what, given=str(shares), involves=involves)


def offload_from_a_gpu(config: Config) -> Iterator[Problem]:
    if config.learner.execution.offload and config.learner.device == "cpu":
        what = 'parameters lie in the CPU\'s memory already; set learner.device = "cuda", or leave this key out'
        yield Problem(key="learner.execution.offload", what=what, given="true", involves=("learner.device",))


def layers_are_spread_evenly(config: Config) -> Iterator[Problem]:
    """Over a divisor of the ranks."""
    learner = config.learner
    if learner.num_workers % learner.tensor_parallel:
        what = f"each layer is spread over as many of the {learner.num_workers} ranks; set a divisor"
        given = str(learner.tensor_parallel)
        yield Problem(key=_TENSOR, what=what, given=given, involves=("learner.num_workers",))


def packs_are_spread_evenly(config: Config) -> Iterator[Problem]:
    """Over a divisor of the ranks, together with the layers."""
    learner = config.learner
    if learner.sequence_parallel == 1 or learner.num_workers % learner.tensor_parallel:
        return
    if (groups := learner.num_workers // learner.tensor_parallel) % learner.sequence_parallel:
        per = f" (num_workers / tensor_parallel = {groups})" if learner.tensor_parallel > 1 else ""
        what = f"each pack is spread over as many of the {learner.num_workers} ranks{per}; set a divisor"
        involves = ("learner.num_workers", _TENSOR)
        yield Problem(key=_SEQUENCE, what=what, given=str(learner.sequence_parallel), involves=involves)


def what_is_not_spread(config: Config) -> Iterator[Problem]:
    """Adapters and compiled layers are whole on every rank, and compiled ones see all tokens."""
    learner, given = config.learner, str(config.learner.tensor_parallel)
    if learner.sequence_parallel > 1 and learner.execution.compile:
        what = "layers are not compiled for packs that are spread; set 1, or learner.execution.compile = false"
        involves = ("learner.execution.compile",)
        yield Problem(key=_SEQUENCE, what=what, given=str(learner.sequence_parallel), involves=involves)
    if learner.tensor_parallel == 1:
        return
    if learner.lora.rank:
        what = "layers with adapters are not spread; set 1, or learner.lora.rank = 0"
        yield Problem(key=_TENSOR, what=what, given=given, involves=("learner.lora.rank",))
    if learner.execution.compile:
        what = "spread layers are not compiled; set 1, or learner.execution.compile = false"
        yield Problem(key=_TENSOR, what=what, given=given, involves=("learner.execution.compile",))


RANK_RULES = (
    layers_are_spread_evenly,
    packs_are_spread_evenly,
    what_is_not_spread,
    ranks_have_rows,
    shares_fit_the_ranks,
    offload_from_a_gpu,
)
