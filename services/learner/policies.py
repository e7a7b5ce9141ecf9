"""The trained policy of one learner rank, and the one that it is held to, made from the configuration."""

from pathlib import Path
from typing import TYPE_CHECKING

from transformers import PreTrainedModel

from streamrl.config import Config
from streamrl.config.estimates import sizes as limits
from streamrl.config.estimates.megatron import model_fits
from streamrl.config.estimates.model_facts import read_folder
from streamrl.errors import ConfigError
from streamrl.learner.model.sharding import ShardedPolicy
from streamrl.learner.parallel.process_group import LearnerGroup
from streamrl.learner.references.averaged import AveragedPolicy
from streamrl.learner.references.frozen import FrozenPolicy
from streamrl.models.dtypes import DTYPES
from streamrl.models.load import load_model
from streamrl.models.vocabulary import require_same_vocabulary
from streamrl.services.run.layout import model_folder, start_folder

if TYPE_CHECKING:
    from streamrl.learner.model.adapters import AdapterSettings


def make_policy(model: PreTrainedModel, config: Config, group: LearnerGroup) -> ShardedPolicy:
    """Collective. The policy that is trained, or the adapters on it."""
    dtype, execution = DTYPES[config.model.dtype], config.learner.execution
    adapters = adapter_settings(model, config)
    if adapters is None:
        return ShardedPolicy(model, group, dtype, execution)
    # Not above: it needs a package that only those have who train adapters.
    from streamrl.learner.model.adapters import AdapterPolicy

    return AdapterPolicy(model, group, dtype, adapters, execution)


def adapter_settings(model: PreTrainedModel, config: Config) -> "AdapterSettings | None":
    """The adapters that are trained on the model; None where all of its weights are."""
    lora = config.learner.lora
    if not lora.rank:
        return None
    from streamrl.learner.model.adapters import AdapterSettings, linear_layers

    targets = lora.targets or tuple(linear_layers(model))
    return AdapterSettings(lora.rank, limits.lora_alpha(lora), targets, config.seed)


def make_reference(run_folder: Path, config: Config, group: LearnerGroup) -> FrozenPolicy:
    """The policy that the trained one is held to, or that teaches it; loaded when it is first called."""
    dtype, reference = config.model.dtype, config.learner.algorithm.reference
    folder = reference_folder(run_folder, config)
    arguments = (lambda: load_model(folder, dtype)), group, DTYPES[dtype], config.learner.execution
    if reference.kind == "average":
        return AveragedPolicy(*arguments, every=reference.every, decay=reference.decay)
    return FrozenPolicy(*arguments)


def reference_folder(run_folder: Path, config: Config) -> Path:
    """Where the reference's weights are, or will be when a warm-up has ended. Raises ConfigError for a model of another
    vocabulary."""
    path = config.learner.algorithm.reference.path
    if path is None:
        return start_folder(run_folder, config)
    folder = Path(path).expanduser()
    require_same_vocabulary(model_folder(run_folder, config), folder)
    return folder


def require_layout(config: Config, folder: Path, key: str) -> None:
    """Raise ConfigError where a model beside the policy, that `key` names, cannot be shared out as `learner.megatron`
    says."""
    facts, problems = read_folder(folder)
    if facts is not None:
        problems = [*problems, *model_fits(config, facts)]
    if problems:
        found = "; ".join(f"{problem.key}: {problem.what}" for problem in problems)
        raise ConfigError(f"{key}: {folder} does not fit the layout of the policy: {found}")
