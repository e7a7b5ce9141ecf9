"""A Hugging Face decoder with a scalar head: a pack in, the value of each target's position out.

Guarantees: the value is of what stands before the target, so it is known before the target is sampled; no padding, and
dropout is off, as in `policy`. The head begins at zero: before anything is learned every value is 0. Parameters are
called as in a Hugging Face sequence classifier, `model.` before the decoder's, and `score.weight`.
"""

import torch
from torch import nn
from transformers import PreTrainedModel

from streamrl.config.schema.learner import ExecutionConfig
from streamrl.errors import ConfigError
from streamrl.learner.attention.packed import attach
from streamrl.learner.attention.self_test import require_packable
from streamrl.learner.batch.packing import PackedBatch
from streamrl.learner.model.sharding import ShardedPolicy
from streamrl.learner.parallel.sequence_parallel import SequenceRanks, hidden_at_predictors

HEAD = "score.weight"


class ValueModel(nn.Module):
    """The critic's model.

    Example:
        values_K = ValueModel(load_model(folder, "float32").base_model)(pack)
    """

    def __init__(self, decoder: PreTrainedModel, sequence: SequenceRanks | None = None) -> None:
        """decoder: without a head of its own. sequence: as `PolicyModel` has it. Raises ConfigError for an attention
        that the learner cannot express."""
        super().__init__()
        attach(decoder)
        self.model = decoder.eval()
        require_packable(decoder, type(decoder).__name__)
        self.sequence = sequence
        hidden_size = int(decoder.config.get_text_config().hidden_size)
        self.score = nn.Linear(hidden_size, 1, bias=False, device=decoder.device, dtype=torch.float32)
        nn.init.zeros_(self.score.weight)

    def forward(self, pack: PackedBatch) -> torch.Tensor:
        """float32 [K], with gradient, at the predictors of the pack's targets."""
        stretch = None if self.sequence is None else self.sequence.stretch(pack)
        # In float32 whatever the decoder's format: in bfloat16 values of about 1 would come in steps of 1/128.
        hidden = hidden_at_predictors(self.model, pack, stretch).float()
        values = torch.mv(hidden, self.score.weight[0].float())
        return values if stretch is None else stretch.of_all_targets(values)


class ShardedCritic(ShardedPolicy):
    """`ShardedPolicy` whose `module` is called like a `ValueModel`."""

    def _wrapped(self, model: PreTrainedModel, execution: ExecutionConfig) -> nn.Module:
        return ValueModel(model, self.group.sequence)


def decoder_of(model: PreTrainedModel) -> PreTrainedModel:
    """The model without its head. Raises ConfigError when it has none inside."""
    decoder = model.base_model
    if not isinstance(decoder, PreTrainedModel):
        raise ConfigError(f"{type(model).__name__} has no decoder of its own; use a model of the Llama family")
    return decoder
