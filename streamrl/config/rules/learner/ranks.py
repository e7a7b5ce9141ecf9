"""The rules about the learner's ranks, and how they compute. Pure: a configuration in, problems out."""

from collections.abc import Iterator

from streamrl.config.problems import Problem
from streamrl.config.schema.run import Config

_TENSOR = "learner.tensor_parallel"
_SEQUENCE = "learner.sequence_parallel"


def ranks_have_rows(config: Config) -> Iterator[Problem]:
    ranks, rows = config.learner.data_ranks, config.rollouts_per_step
    if ranks > rows:
        what = f"more ranks than the {rows} rollouts of a step (groups_per_step x group_size)"
        involves = ("learner.groups_per_step", "rollout.group_size")
        yield Problem(key="learner.num_workers", what=what, given=str(config.learner.num_workers), involves=involves)


def nodes_have_ranks(config: Config) -> Iterator[Problem]:
    """As many each, on a cluster."""
    nodes, ranks = config.learner.nodes, config.learner.num_workers
    if nodes == 1:
        return
    if ranks % nodes:
        what = f"the {ranks} ranks are shared out evenly; set a divisor of learner.num_workers"
        yield Problem(key="learner.nodes", what=what, given=str(nodes), involves=("learner.num_workers",))
    if config.ray.address == "local":
        what = "a Ray of the run's own has one node, this one; set ray.address to a cluster's, or 1"
        yield Problem(key="learner.nodes", what=what, given=str(nodes), involves=("ray.address",))


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
    """Adapters and compiled layers are whole on every rank, and compiled ones see all tokens, as routers do."""
    learner, given = config.learner, str(config.learner.tensor_parallel)
    if learner.sequence_parallel > 1 and learner.router_aux_loss_coef:
        what = "experts are not balanced over packs that are spread; set 1, or learner.router_aux_loss_coef = 0"
        involves = ("learner.router_aux_loss_coef",)
        yield Problem(key=_SEQUENCE, what=what, given=str(learner.sequence_parallel), involves=involves)
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


def gpus_are_shared_by_others(config: Config) -> Iterator[Problem]:
    """A share of a GPU is for those that may lie beside one another on it."""
    learner, rollout = config.learner, config.rollout
    if learner.gpu_share < 1 and learner.device == "cpu":
        what = 'on a CPU there is none to share; set learner.device = "cuda", or leave this key out'
        yield _share("learner", what, learner.gpu_share, "device")
    elif learner.gpu_share < 1 and learner.num_workers > 1:
        what = "two ranks could come to lie on one GPU, which NCCL refuses; set 1, or learner.num_workers = 1"
        yield _share("learner", what, learner.gpu_share, "num_workers")
    if rollout.gpu_share == 1:
        return
    if rollout.device == "cpu":
        what = 'on a CPU there is none to share; set rollout.device = "cuda", or leave this key out'
        yield _share("rollout", what, rollout.gpu_share, "device")
    elif "GPU" in (rollout.resources or {}):
        yield _share("rollout", "rollout.resources says it too; leave one of them out", rollout.gpu_share, "resources")
    elif rollout.is_server and rollout.server.tensor_parallel > 1:
        what = "a server that is spread over GPUs takes them whole; set 1"
        yield _share("rollout", what, rollout.gpu_share, "server.tensor_parallel")


def _share(table: str, what: str, given: float, other: str) -> Problem:
    return Problem(key=f"{table}.gpu_share", what=what, given=f"{given:g}", involves=(f"{table}.{other}",))


RANK_RULES = (
    gpus_are_shared_by_others,
    layers_are_spread_evenly,
    packs_are_spread_evenly,
    what_is_not_spread,
    ranks_have_rows,
    nodes_have_ranks,
    shares_fit_the_ranks,
    offload_from_a_gpu,
)
