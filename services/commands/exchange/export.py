"""A run's newest checkpoint as a Hugging Face folder, or its adapters as one of peft's, without the run being up.

Knows the names that the learner gives its weights in a checkpoint, and nothing else of either side. Imports
torch.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import torch

from streamrl.config import Config, load
from streamrl.config.estimates import sizes as limits
from streamrl.config.estimates.model_facts import read_folder
from streamrl.errors import ConfigError, DataError
from streamrl.learner.checkpoint.checkpoint import CheckpointInfo, find_newest
from streamrl.models.adapters.merge import merge
from streamrl.models.adapters.names import NAMES_OF_EXPERTS
from streamrl.models.dtypes import DTYPES
from streamrl.models.export import export_hf
from streamrl.services.commands.exchange.readiness import nothing_yet
from streamrl.services.run.folder import RunFolder
from streamrl.services.run.layout import model_folder
from streamrl.weights.tensors import weights_digest

WEIGHT = "model/"

ExportLayout = Literal["hf", "peft"]


def export_newest(run: RunFolder, to: Path, layout: ExportLayout = "hf") -> int:
    """Write the newest verified checkpoint's weights to the folder `to`; returns the step they are of.

    Where adapters are trained, `hf` is the model with them merged, and `peft` the adapters alone. Raises RunFolderError
    when the run has no checkpoint, DataError when the checkpoint is of another model, ConfigError for the adapters of a
    run that trains none, or that peft would put elsewhere.
    """
    found = find_newest(run.checkpoints_path).newest
    if found is None:
        raise nothing_yet(run)
    config = load(run.config_path)
    source = model_folder(run.path, config)
    if layout == "peft":
        _export_adapters(found, config, source, to)
        return found.version.step
    weights = _merged(found, config, source) if config.learner.lora.rank else _weights(found, config)
    export_hf(weights, source, to)
    return found.version.step


def _weights(found: CheckpointInfo, config: Config) -> Iterator[tuple[str, torch.Tensor]]:
    """Whole weights by their Hugging Face names, in the model's number format, one at a time."""
    for name, tensor in _trained(found):
        yield name, tensor.to(DTYPES[config.model.dtype])


def _trained(found: CheckpointInfo) -> Iterator[tuple[str, torch.Tensor]]:
    """What the optimizer changed, in float32."""
    for entry in found.manifest.files:
        for name in entry.tensors:
            if name.startswith(WEIGHT):
                yield name.removeprefix(WEIGHT), found.tensor(name)


def _merged(found: CheckpointInfo, config: Config, source: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights that a replica would serve: those in `source`, with the adapters of the checkpoint."""
    # Here and not above: it takes a second, which an export of all weights has no use for.
    from streamrl.models.load import load_model

    base = [(name, param.detach()) for name, param in load_model(source, config.model.dtype).named_parameters()]
    trained_on = found.extra["backend"]["adapters"]["base"]
    if weights_digest(base) != trained_on:
        raise DataError(
            f"the adapters of checkpoint {found.path} are of a model with digest {trained_on}, and the one in {source} "
            f"has {weights_digest(base)}: put the model back that the run was started on"
        )
    lora = config.learner.lora
    return merge(base, dict(_trained(found)), limits.lora_alpha(lora) / lora.rank)


def _export_adapters(found: CheckpointInfo, config: Config, source: Path, to: Path) -> None:
    lora = config.learner.lora
    if not lora.rank:
        what = "learner.lora.rank = 0: the run trains all weights, so it has no adapters"
        raise ConfigError(f"{what}; export them whole, which is the format hf")
    # Not above: it needs a package that only those have who train adapters.
    from streamrl.models.adapters.peft_folder import export_peft, peft_config

    trained = dict(_trained(found))
    targets = lora.targets or tuple(dict.fromkeys(name.split(".")[-3] for name in trained))
    _require_own_names(targets, source)
    wanted = peft_config(lora.rank, limits.lora_alpha(lora), targets, str(source))
    export_peft(trained, wanted, to)


def _require_own_names(targets: Sequence[str], source: Path) -> None:
    """Raise ConfigError for layers that peft looks for in the experts of the model in `source`: of a model that has
    experts in some layers and a dense MLP in others."""
    facts, _ = read_folder(source)
    taken = [name for name in targets if name in NAMES_OF_EXPERTS]
    if facts is not None and facts.num_experts and taken:
        raise ConfigError(
            f"the run has adapters on {', '.join(taken)}, and of a model with experts (type {facts.model_type!r}) peft "
            "reads these names as the experts': it would compute something else; export the whole model, which is the "
            "format hf, or train with learner.lora.targets that are layers of attention"
        )
