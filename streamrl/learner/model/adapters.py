"""A policy of which low-rank adapters are trained (LoRA, by peft), on the sharded model whose weights stay as they are.

Guarantees: the weights of the model get no gradient, no optimizer state and no change; the adapters begin as a function
of the seed, and change nothing at first; `iter_hf_weights` gives the model with the adapters merged, bit for bit what a
replica makes of the version (`streamrl.models.adapters.merge`), so on the CPU. Versions and checkpoints hold the
adapters alone, in float32 whatever the model's format: merging rounds once. Needs the extra `lora`.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from peft import inject_adapter_in_model
from transformers import PreTrainedModel

from streamrl.config.schema.learner import ExecutionConfig
from streamrl.errors import ConfigError, DataError
from streamrl.learner.finite import require_finite_weight
from streamrl.learner.model.sharding import PLAIN, ShardedPolicy
from streamrl.learner.parallel.process_group import LearnerGroup
from streamrl.models.adapters.merge import merge
from streamrl.models.adapters.peft_folder import peft_config
from streamrl.weights.tensors import weights_digest

_ADAPTER = "default"
_BASE = ".base_layer"


class AdapterSettings(NamedTuple):
    """rank, alpha: the adapters' product counts alpha / rank times. targets: names of linear layers."""

    rank: int
    alpha: float
    targets: tuple[str, ...]
    seed: int

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


class AdapterPolicy(ShardedPolicy):
    """`ShardedPolicy` whose shards are those of the adapters."""

    def __init__(
        self,
        model: PreTrainedModel,
        group: LearnerGroup,
        dtype: torch.dtype,
        settings: AdapterSettings,
        execution: ExecutionConfig = PLAIN,
    ) -> None:
        """Collective. As `ShardedPolicy`. Raises ConfigError for a target that the model does not have."""
        self.settings = settings
        self.base_digest = weights_digest((name, param.to(dtype)) for name, param in model.named_parameters())
        """What the manifest of the base says, wherever it is published."""
        add_adapters(model.to(torch.float32), settings)
        super().__init__(model, group, dtype, execution)
        self.version_dtype = torch.float32

    def _name(self, parameter: str) -> str:
        return _plain(parameter)

    def iter_version(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, whole in self.iter_weights():
            require_finite_weight(name, whole)
            yield name, whole

    def iter_hf_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        # On the CPU, as replicas and `streamrl export` merge: a GPU would add up the same products in another order.
        adapters = {name: whole.cpu() for name, whole in self.iter_version()}
        base = ((name, weight.cpu()) for name, weight in self.gather_base(beside=False))
        return merge(base, adapters, self.settings.scale)

    def state_facts(self) -> dict[str, Any]:
        return adapter_facts(self.settings, self.base_digest)

    def check_state(self, facts: Mapping[str, Any]) -> None:
        require_same_adapters(facts, self.state_facts())


def adapter_facts(settings: AdapterSettings, base: str) -> dict[str, Any]:
    """What a learner's state says of its adapters, as JSON values. base: the digest of the model that they are for."""
    return {"adapters": {"rank": settings.rank, "alpha": settings.alpha, "base": base}}


def require_same_adapters(found: Mapping[str, Any], mine: Mapping[str, Any]) -> None:
    """Raise DataError when a state with the facts `found` is not of the adapters `mine`."""
    if found.get("adapters") != mine["adapters"]:
        raise DataError(
            f"the learner state is of adapters {found.get('adapters')}, and this learner trains {mine['adapters']}: "
            "was the model replaced, or learner.lora changed, since it was saved?"
        )


def add_adapters(model: PreTrainedModel, settings: AdapterSettings) -> None:
    """Put adapters on the linear layers of `model` that are called like the targets, and freeze the rest.

    Raises ConfigError, with the names that there are, for a target that is none of its decoder.
    """
    known = linear_layers(model)
    unknown = [name for name in settings.targets if name not in known]
    if unknown or not settings.targets:
        raise ConfigError(
            f"learner.lora.targets: {', '.join(unknown) or 'nothing'} is no linear layer of this model's decoder; it "
            f"has {', '.join(known)}"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        wanted = peft_config(settings.rank, settings.alpha, settings.targets)
        # The layers, not the model: where a model has experts, peft would take names of linear layers for the experts'.
        model.requires_grad_(False)
        inject_adapter_in_model(wanted, model.base_model.layers, _ADAPTER)


def adapters_of(model: PreTrainedModel) -> dict[str, torch.nn.Parameter]:
    """What `add_adapters` put into the model, by the names that versions and checkpoints have for it, in its order."""
    return {_plain(name): param for name, param in model.named_parameters() if param.requires_grad}


def _plain(parameter: str) -> str:
    """A parameter's name outside of the model, from peft's."""
    return parameter.replace(f".{_ADAPTER}.weight", ".weight").replace(f"{_BASE}.", ".")


def linear_layers(model: PreTrainedModel) -> list[str]:
    """What the linear layers of the decoder are called, each once, in the model's order."""
    layers = model.base_model.layers
    names = [name.rpartition(".")[2] for name, one in layers.named_modules() if isinstance(one, torch.nn.Linear)]
    return list(dict.fromkeys(names))
