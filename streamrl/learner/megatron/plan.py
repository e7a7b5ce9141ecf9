"""Which parameter of which stage is which Hugging Face tensor, for one model in one layout. Pure, and the same on every
rank: so the ranks need not ask each other before they gather.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from streamrl.config.estimates.megatron import MegatronLayout
from streamrl.errors import ConfigError
from streamrl.learner.megatron.cuts import Cut
from streamrl.learner.megatron.families import EMBEDDING, FINAL_NORM, OUTPUT, TIED_OUTPUT, VALUE, Family, Row

LAYER = "model.layers.{layer}."
"""What stands before the Hugging Face names of a layer."""

_OTHER_NAMES = {
    "self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight",
    "mlp.linear_fc1.layer_norm_weight": "pre_mlp_layernorm.weight",
}
"""Where Transformer Engine computes a norm and the product behind it at once, the norm's weight is the product's."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A parameter, or one of each expert, and the tensors that it is. tensors: Hugging Face names. stage, chunk: which
    model chunk has it. places: of the parameter on a rank of that stage, `chunk` and its name; of experts one for
    each that a rank has. exported: whether the tensors come from here; a copy of the embedding is loaded, no more."""

    tensors: tuple[str, ...]
    stage: int
    chunk: int
    places: tuple[str, ...]
    cut: Cut
    of_experts: bool = False
    exported: bool = True


def make_plan(
    family: Family, names: Sequence[str], layout: MegatronLayout, *, num_layers: int, num_experts: int = 0
) -> tuple[Entry, ...]:
    """names: all parameters of the Hugging Face model; a tied output layer is none, and a critic has `VALUE` instead.
    Raises ConfigError for those that the family's rows have no place for."""
    head = VALUE if VALUE.tensors[0] in names else OUTPUT
    tied = head.tensors[0] not in names
    last = (layout.pipeline - 1, layout.virtual - 1)
    entries = [_outside(EMBEDDING, (0, 0)), _outside(FINAL_NORM, last)]
    if not tied:
        entries.append(_outside(head, last))
    elif layout.pipeline > 1:
        entries.append(_outside(TIED_OUTPUT, last, exported=False))
    for layer in range(num_layers):
        entries += [_of_layer(row, layer, num_layers, layout, num_experts) for row in family.layer]
    _require_covered(entries, names)
    return tuple(entries)


def _outside(row: Row, place: tuple[int, int], exported: bool = True) -> Entry:
    return Entry(row.tensors, *place, (f"{place[1]}.{row.param}",), row.cut, exported=exported)


def _of_layer(row: Row, layer: int, num_layers: int, layout: MegatronLayout, num_experts: int) -> Entry:
    stage, chunk = layout.chunk_of(num_layers, layer)
    own = layer - layout.layers(num_layers, stage, chunk).start
    experts = range(num_experts // layout.expert) if row.of_experts else (0,)
    places = tuple(f"{chunk}.decoder.layers.{own}.{row.param.format(expert=expert)}" for expert in experts)
    tensors = tuple(LAYER.format(layer=layer) + name for name in row.tensors)
    return Entry(tensors, stage, chunk, places, row.cut, row.of_experts)


def _require_covered(entries: Sequence[Entry], names: Sequence[str]) -> None:
    covered = [name for entry in entries if entry.exported for name in entry.tensors]
    if missing := sorted(set(covered) - set(names)):
        raise ConfigError(f"the model has no {_few(missing)}, which models of its type have; is it a whole one?")
    if unknown := sorted(set(names) - set(covered)):
        raise ConfigError(
            f'learner.backend = "megatron" has no place for {_few(unknown)} of this model; add rows for them to '
            'streamrl/learner/megatron/families.py, or set learner.backend = "fsdp"'
        )


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def canonical(name: str) -> str:
    """A parameter's name in a model chunk as the local specification has it, of either."""
    for other, local in _OTHER_NAMES.items():
        if name.endswith(other):
            return name.removesuffix(other) + local
    head, grouped, expert = name.partition(".linear_fc1.weight")
    if not grouped or not expert:
        head, grouped, expert = name.partition(".linear_fc2.weight")
    if grouped and expert.isdigit():  # all experts of a rank in one module, with numbered weights
        return f"{head}.local_experts.{expert}{grouped}"
    return name


def by_name(params: Mapping[str, object]) -> dict[str, object]:
    """`params` under their canonical names."""
    return {canonical(name): param for name, param in params.items()}
