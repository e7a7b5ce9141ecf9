"""Whether the weights of a model folder fit its config.json: by the headers of their files, so none of them is read.

Guarantees that what is refused here transformers would refuse, or load wrong, when the run loads it. What transformers
makes of several tensors, or renames, is its own business and passes.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from streamrl.config.estimates.weight_files import Shape, Unreadable, read_object, tensor_shapes
from streamrl.errors import ConfigError

_SHOWN = 3
_EXPERT = re.compile(r"(?P<place>.+\.experts)\.\d+\.(?P<part>.+)")
"""A tensor of one expert."""
_STACKED = re.compile(r".+\.experts\.(gate_up_proj|down_proj)")
"""A tensor of all experts of a layer."""
_LAYER = re.compile(r"\.layers\.(\d+)\.")


def require_fitting_weights(folder: Path, *, scores: bool = False) -> None:
    """scores: whether it is a sequence classifier, and no causal language model. Raises ConfigError for a model type
    that transformers does not know, and names the tensors that have another shape than config.json wants, or that are
    missing."""
    kind = AutoModelForSequenceClassification if scores else AutoModelForCausalLM
    try:
        config, found = read_object(folder / "config.json"), tensor_shapes(folder)
    except Unreadable as error:
        raise ConfigError(str(error)) from error
    _require_known_type(folder, str(config.get("model_type")))
    if config.get("quantization_config") is not None:
        return  # its tensors are of other shapes, and are unpacked when they are loaded
    model = _without_weights(kind, folder)
    if model is None:
        return
    wanted = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    converted = [pattern for entry in get_model_conversion_mapping(model) for pattern in entry.source_patterns]
    kept = {name: shape for name, shape in found.items() if not any(re.search(one, name) for one in converted)}
    wrong = [name for name, shape in kept.items() if name in wanted and wanted[name] != shape]
    if wrong:
        shown = sorted(wrong)[:_SHOWN]
        shapes = "; ".join(f"{name} is {_text(kept[name])} and should be {_text(wanted[name])}" for name in shown)
        raise ConfigError(_refusal(folder, f"do not fit its config.json: {shapes}", len(wrong)))
    lacking = _lacking_experts(found, wanted)
    if lacking:
        raise ConfigError(_lack(folder, lacking))
    if all(name in kept or _EXPERT.fullmatch(name) for name in found):
        rest = wanted if kept.keys() == found.keys() else {n: wanted[n] for n in wanted if not _STACKED.fullmatch(n)}
        _require_all(folder, kept, rest, model._keys_to_ignore_on_load_missing or ())


def _lacking_experts(found: Mapping[str, Shape], wanted: Mapping[str, Shape]) -> list[str]:
    """What is missing of experts that have a tensor each, where the model has one for all: every layer has the same
    parts of as many experts. [] where the names do not say which layer is which."""
    there = [match for name in found if (match := _EXPERT.fullmatch(name))]
    places = {_LAYER.sub(".layers.{}.", match["place"]) for match in there}
    ends = {match["part"] for match in there}
    layers = [(_LAYER.search(name), shape[0]) for name, shape in wanted.items() if _STACKED.fullmatch(name)]
    counts = {(layer[1], count) for layer, count in layers if layer is not None}
    if len(places) != 1:
        return []
    place = places.pop()
    names = (
        f"{place.format(layer)}.{number}.{end}" for layer, count in counts for number in range(count) for end in ends
    )
    return sorted(name for name in names if name not in found)


def _require_all(
    folder: Path, found: Mapping[str, Shape], wanted: Mapping[str, Shape], optional: Iterable[str]
) -> None:
    """Refuse weights that are missing. optional: patterns of names that may be. A tensor of an unknown name may be one
    of its shape, which is renamed as it is loaded, or a tied one by its other name."""
    renamed = {shape for name, shape in found.items() if name not in wanted}
    lacking = [name for name, shape in wanted.items() if name not in found and shape not in renamed]
    missing = sorted(name for name in lacking if not any(re.search(one, name) for one in optional))
    if missing:
        raise ConfigError(_lack(folder, missing))


def _lack(folder: Path, missing: list[str]) -> str:
    return _refusal(folder, f"lack what its config.json asks for: {', '.join(missing[:_SHOWN])}", len(missing))


def _refusal(folder: Path, what: str, count: int) -> str:
    more = f" and {count - _SHOWN} more" if count > _SHOWN else ""
    return f"the weights in {folder} {what}{more}; take the config.json that belongs to them"


def _require_known_type(folder: Path, model_type: str) -> None:
    if model_type not in CONFIG_MAPPING:
        near = difflib.get_close_matches(model_type, list(CONFIG_MAPPING.keys()), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "; a newer transformers may know it"
        raise ConfigError(
            f"{folder / 'config.json'}: transformers {transformers.__version__} knows no model_type {model_type!r}"
            f"{hint}"
        )


def _without_weights(kind: Any, folder: Path) -> Any | None:
    """The model of a folder's config.json, on torch's device without memory; None where it has no such form. Raises
    ConfigError where transformers makes none of it."""
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        with torch.device("meta"):
            return kind.from_config(config, trust_remote_code=False)
    except (ValueError, KeyError, TypeError, AttributeError, ImportError, StrictDataclassError) as error:
        # transformers raises any of these for values that do not go together.
        told = " ".join(str(error).split())
        raise ConfigError(f"{folder / 'config.json'}: no model can be made of it: {told[:400]}") from error
    except RuntimeError:
        return None  # something of it is computed as it is made, which takes memory: loading it will say more


def _text(shape: Shape) -> str:
    return " x ".join(map(str, shape)) or "a number"
