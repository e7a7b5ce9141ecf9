"""A Hugging Face causal LM as the learner sees it: a pack in, log-probs of the trained tokens out.

Guarantees: no padding, no T x T mask, no T x vocabulary logits; dropout is off, since the policy that is
trained is the one that sampled. The module holds the model under the attribute `model`, so its parameter
names are the Hugging Face names with `model.` before them. Attaching changes the attention of the model
that is given: use another copy for generation.
"""

import torch
from torch import nn
from transformers import PreTrainedModel

from streamrl.errors import ConfigError
from streamrl.learner.attention import attach
from streamrl.learner.logprobs import token_logprobs
from streamrl.learner.packing import PackedBatch
from streamrl.learner.sequence_parallel import SequenceRanks, hidden_at_predictors

PREFIX = "model."
"""What stands before each Hugging Face name in `PolicyModel.named_parameters()`."""

OUTPUT_SCALES = ("final_logit_softcapping", "logit_scale", "logits_scaling")
"""Config keys of models whose logits are not `hidden @ head`; none of them may be set."""


class PolicyModel(nn.Module):
    """The trainable policy.

    Example:
        policy = PolicyModel(AutoModelForCausalLM.from_pretrained(folder))
        logprobs_K, entropy_K = policy(pack, temperature=1.0)
    """

    def __init__(
        self, model: PreTrainedModel, logits_at_once: int | None = None, sequence: SequenceRanks | None = None
    ) -> None:
        """logits_at_once: how many exist at a time; by default what `logprobs.LOGITS_AT_ONCE` says. sequence: the ranks
        that packs are spread over, if any; a call is a collective of theirs then.

        Raises ConfigError for a model whose attention or output the learner cannot express.
        """
        super().__init__()
        text = model.config.get_text_config()
        for key in OUTPUT_SCALES:
            if getattr(text, key, None) is not None:
                raise ConfigError(
                    f"the learner cannot train this model: {key} = {getattr(text, key)} in its config.json; "
                    "use one whose logits are a plain product (Qwen2, Qwen3, Llama)"
                )
        attach(model)
        self.model = model.eval()
        self.logits_at_once = logits_at_once
        self.sequence = sequence

    def forward(
        self, pack: PackedBatch, temperature: float, entropy_gradient: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(logprobs_K with gradient, entropy_K without it unless asked for), float32, for the pack's targets.

        `temperature` divides the logits: pass the one that the rollouts were sampled with.
        """
        stretch = None if self.sequence is None else self.sequence.stretch(pack)
        head = self.model.get_output_embeddings()
        logprobs, entropy = token_logprobs(
            hidden_at_predictors(self.model.base_model, pack, stretch),
            head.weight,
            getattr(head, "bias", None),
            pack.targets if stretch is None else stretch.targets,
            temperature,
            self.logits_at_once,
            entropy_gradient,
        )
        if stretch is None:
            return logprobs, entropy
        return stretch.of_all_targets(logprobs), stretch.of_all_targets(entropy)
