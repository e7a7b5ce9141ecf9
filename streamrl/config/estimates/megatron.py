"""Who of the ranks has what under Megatron: layers, heads, experts, rows of the vocabulary. Pure arithmetic.

Ranks are counted as megatron-core counts them by default: those that share a layer's matrices are neighbours, then
those that share a pack, then those with other rows; the stages of a pipeline are farthest apart.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from streamrl.config.estimates.model_facts import ModelFacts
from streamrl.config.known import MEGATRON_TYPES
from streamrl.config.problems import Problem
from streamrl.config.schema.learner import MegatronConfig
from streamrl.config.schema.run import Config

_TABLE = "learner.megatron"
_WORKERS = "learner.num_workers"


@dataclass(frozen=True, slots=True)
class MegatronLayout:
    """`world_size` ranks, and over how many of them each thing is spread. virtual: model chunks that a rank has;
    above 1 a pipeline goes over its stages as often. context: stretches of a pack's tokens. expert: ranks that the
    experts of a layer are shared out to, which have different rows. expert_tensor: ranks that the matrices of one
    expert are spread over."""

    world_size: int = 1
    tensor: int = 1
    pipeline: int = 1
    virtual: int = 1
    context: int = 1
    expert: int = 1
    expert_tensor: int = 1

    @classmethod
    def of(cls, config: MegatronConfig, world_size: int) -> "MegatronLayout":
        return cls(
            world_size,
            config.tensor_parallel,
            config.pipeline_parallel,
            config.virtual_pipeline,
            config.context_parallel,
            config.expert_parallel,
            config.expert_tensor_parallel,
        )

    @property
    def same_rows(self) -> int:
        """Ranks that work on the same rows."""
        return self.tensor * self.context * self.pipeline

    @property
    def data_size(self) -> int:
        """Ranks, or groups of ranks, that have rows of their own."""
        return self.world_size // self.same_rows

    def data_rank(self, rank: int) -> int:
        """Whose rows a rank has, of `data_size`."""
        return rank // (self.tensor * self.context) % self.data_size

    def context_rank(self, rank: int) -> int:
        """Which stretch of a pack's tokens a rank has, of `context`."""
        return rank // self.tensor % self.context

    def stage(self, rank: int) -> int:
        """Which stage of its pipeline a rank is."""
        return rank // (self.tensor * self.context * self.data_size)

    def layers(self, num_layers: int, stage: int, chunk: int = 0) -> range:
        """The layers of model chunk `chunk`, of `virtual`, of a stage."""
        each = num_layers // (self.pipeline * self.virtual)
        first = (chunk * self.pipeline + stage) * each
        return range(first, first + each)

    def chunk_of(self, num_layers: int, layer: int) -> tuple[int, int]:
        """(stage, chunk) that has a layer."""
        chunk, stage = divmod(layer // (num_layers // (self.pipeline * self.virtual)), self.pipeline)
        return stage, chunk

    def padded_vocabulary(self, vocab_size: int) -> int:
        """Rows of embedding and output layer, the same number on each tensor rank. Those behind the vocabulary are 0,
        and no token."""
        return -(-vocab_size // self.tensor) * self.tensor

    def own_vocabulary(self, vocab_size: int, tensor_rank: int) -> int:
        """Rows of the vocabulary that a tensor rank has, without the padding behind them."""
        each = self.padded_vocabulary(vocab_size) // self.tensor
        return max(0, min(each, vocab_size - tensor_rank * each))


def ranks_fit(megatron: MegatronConfig, world_size: int) -> Iterator[Problem]:
    """Whether so many ranks are a whole number of model replicas, with experts and without."""
    layout, given = MegatronLayout.of(megatron, world_size), str(world_size)
    if world_size % layout.same_rows:
        sizes = f"{layout.tensor} x {layout.pipeline} x {layout.context}"
        what = (
            f"{world_size} ranks are no multiple of the {layout.same_rows} that one model takes (tensor_parallel x "
            f"pipeline_parallel x context_parallel = {sizes}); set a multiple"
        )
        yield Problem(key=_WORKERS, what=what, given=given, involves=_keys("tensor_parallel", "pipeline_parallel"))
    experts = layout.expert * layout.expert_tensor * layout.pipeline
    if world_size % experts:
        sizes = f"{layout.expert} x {layout.expert_tensor} x {layout.pipeline}"
        what = (
            f"{world_size} ranks are no multiple of the {experts} that one set of experts takes (expert_parallel x "
            f"expert_tensor_parallel x pipeline_parallel = {sizes}); set a multiple"
        )
        involves = _keys("expert_parallel", "expert_tensor_parallel", "pipeline_parallel")
        yield Problem(key=_WORKERS, what=what, given=given, involves=involves)


def model_fits(config: Config, model: ModelFacts) -> Iterator[Problem]:
    """Whether there is a mapping for the model, and its heads, layers, experts and vocabulary can be shared out like
    this."""
    if model.model_type not in MEGATRON_TYPES:
        what = f'"megatron" has no mapping of weights for models of type "{model.model_type}"; set "fsdp"'
        known = f"models of type {', '.join(MEGATRON_TYPES)}"
        yield Problem(key="learner.backend", what=what, given='"megatron"', allowed=known, involves=("model.path",))
    megatron = config.learner.megatron
    layout = MegatronLayout.of(megatron, config.learner.num_workers)
    inner = 0 if model.num_experts else model.intermediate_size
    for name, count in (
        ("attention heads", model.num_heads),
        ("key-value heads", model.num_kv_heads),
        ("elements of the MLP's inner size", inner),
    ):
        if count % layout.tensor:
            yield _uneven("tensor_parallel", layout.tensor, f"the model's {count} {name}")
    if layout.context > 1 and model.num_heads % (layout.tensor * layout.context):
        beside = f" times tensor_parallel = {layout.tensor}" if layout.tensor > 1 else ""
        what = f"the model's {model.num_heads} attention heads are no multiple of it{beside}; set a divisor"
        yield Problem(key=f"{_TABLE}.context_parallel", what=what, given=str(layout.context))
    if model.num_layers % (layout.pipeline * layout.virtual):
        yield _layers(layout, model.num_layers)
    if not layout.own_vocabulary(model.vocab_size, layout.tensor - 1):
        padded = layout.padded_vocabulary(model.vocab_size)
        what = (
            f"a vocabulary of {model.vocab_size} is padded to {padded} rows, {padded // layout.tensor} a rank, and the "
            "last rank has padding alone; set less"
        )
        yield Problem(key=f"{_TABLE}.tensor_parallel", what=what, given=str(layout.tensor))
    yield from _experts_fit(megatron, layout, model)


def _layers(layout: MegatronLayout, num_layers: int) -> Problem:
    parts = layout.pipeline * layout.virtual
    what = (
        f"the model's {num_layers} layers are not shared out evenly to {parts} model chunks (pipeline_parallel x "
        f"virtual_pipeline = {layout.pipeline} x {layout.virtual}); set a divisor"
    )
    involves = _keys("virtual_pipeline")
    return Problem(key=f"{_TABLE}.pipeline_parallel", what=what, given=str(layout.pipeline), involves=involves)


def _experts_fit(megatron: MegatronConfig, layout: MegatronLayout, model: ModelFacts) -> Iterator[Problem]:
    if not model.num_experts:
        for key in ("expert_parallel", "expert_tensor_parallel"):
            if getattr(megatron, key) > 1:
                what = f"the model ({model.model_type}) has no experts; set 1"
                yield Problem(key=f"{_TABLE}.{key}", what=what, given=str(getattr(megatron, key)))
        return
    if model.num_experts % layout.expert:
        yield _uneven("expert_parallel", layout.expert, f"the {model.num_experts} experts of a layer")
    if model.expert_size % layout.expert_tensor:
        what = f"the {model.expert_size} elements of an expert's inner size"
        yield _uneven("expert_tensor_parallel", layout.expert_tensor, what)
    if layout.tensor > 1 and not megatron.sequence_parallel:
        what = (
            f"a model with experts under tensor_parallel = {layout.tensor} needs the tokens spread, too, or each of "
            "these ranks sends all of them to the experts; set true"
        )
        involves = _keys("tensor_parallel")
        yield Problem(key=f"{_TABLE}.sequence_parallel", what=what, given="false", involves=involves)


def _uneven(key: str, size: int, what: str) -> Problem:
    return Problem(key=f"{_TABLE}.{key}", what=f"{what} are no multiple of it; set a divisor", given=str(size))


def _keys(*names: str) -> tuple[str, ...]:
    return tuple(f"{_TABLE}.{name}" for name in names)
