"""A Hugging Face causal LM as the learner sees it: a pack in, log-probs of the trained tokens out.

Guarantees: no padding, no T x T mask, no T x vocabulary logits; dropout is off, since the policy that is
trained is the one that sampled. The module holds the model under the attribute `model`, so its parameter
names are the Hugging Face names with `model.` before them. Attaching changes the attention of the model
that is given: use another copy for generation.
"""

import torch
from torch import nn
from transformers import PreTrainedModel

from streamrl.config.schema.learner import LOGITS_BYTES
from streamrl.errors import ConfigError
from streamrl.learner.attention.packed import attach
from streamrl.learner.attention.self_test import require_packable
from streamrl.learner.batch.packing import PackedBatch
from streamrl.learner.model.logprobs import token_logprobs
from streamrl.learner.model.output_form import capped_logprobs, output_form, require_own_logits
from streamrl.learner.model.routers import routers_of
from streamrl.learner.parallel.sequence_parallel import SequenceRanks, hidden_at_predictors
from streamrl.models.mixers import mixers_of

PREFIX = "model."
"""What stands before each Hugging Face name in `PolicyModel.named_parameters()`."""


class PolicyModel(nn.Module):
    """The trainable policy.

    Example:
        policy = PolicyModel(AutoModelForCausalLM.from_pretrained(folder))
        logprobs_K, entropy_K = policy(pack, temperature=1.0)
    """

    def __init__(
        self,
        model: PreTrainedModel,
        logits_at_once: int | None = None,
        sequence: SequenceRanks | None = None,
        logits_bytes: int = LOGITS_BYTES,
    ) -> None:
        """logits_at_once, logits_bytes: as `token_logprobs` has them. sequence: the ranks that packs are spread over,
        if any; a call is a collective of theirs then.

        Raises ConfigError for a model whose attention or output the learner cannot express.
        """
        super().__init__()
        attach(model)
        self.model = model.eval()
        self.output = output_form(model.config)
        require_packable(model.base_model, type(model).__name__)
        require_own_logits(model, self.output)
        if sequence is not None and mixers_of(model.base_model):
            raise ConfigError(
                f"learner.sequence_parallel: {type(model).__name__} mixes tokens outside of attention, which cannot be "
                "spread over ranks; set 1"
            )
        self.logits_at_once = logits_at_once
        self.logits_bytes = logits_bytes
        self.sequence = sequence
        self.routers = routers_of(model)
        self.replays_routes = False
        """Whether tokens go to the experts that they went to in the engine, where that is known."""

    def forward(
        self, pack: PackedBatch, temperature: float, entropy_gradient: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(logprobs_K with gradient, entropy_K without it unless asked for), float32, for the pack's targets.

        `temperature` divides the logits: pass the one that the rollouts were sampled with.
        """
        stretch = None if self.sequence is None else self.sequence.stretch(pack)
        if self.routers is not None:
            self.routers.begin(pack.routes if self.replays_routes else None)
        hidden = hidden_at_predictors(self.model.base_model, pack, stretch)
        targets = pack.targets if stretch is None else stretch.targets
        logprobs, entropy = self._logprobs(hidden, targets, temperature, entropy_gradient)
        if stretch is None:
            return logprobs, entropy
        return stretch.of_all_targets(logprobs), stretch.of_all_targets(entropy)

    def _logprobs(
        self, hidden_KH: torch.Tensor, targets_K: torch.Tensor, temperature: float, entropy_gradient: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(logprobs_K, entropy_K) of targets by the hidden states that predict them."""
        head, (scale, cap) = self.model.get_output_embeddings(), self.output
        product = head.weight, getattr(head, "bias", None), targets_K, temperature
        hidden_KH = hidden_KH if scale == 1.0 else hidden_KH * scale
        if cap is not None and len(targets_K):
            return capped_logprobs(hidden_KH, *product, cap, entropy_gradient)
        return token_logprobs(hidden_KH, *product, self.logits_at_once, entropy_gradient, self.logits_bytes)
