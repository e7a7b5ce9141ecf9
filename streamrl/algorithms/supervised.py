"""Losses of data that nobody samples: demonstrations, and pairs of which one was preferred.

Pure functions of flat tensors: a token, or a pair, that must not be trained is not in them. A pair is the same prompt
with two answers; what is summed over an answer's tokens, or read from a head at its end, is the caller's business.
"""

import torch
import torch.nn.functional as F


def sft(logprobs_T: torch.Tensor) -> torch.Tensor:
    """`-logprobs`, float32 [T]: the negative log-likelihood in nats of each token of a demonstration."""
    return -logprobs_T


def dpo(
    chosen_P: torch.Tensor,
    rejected_P: torch.Tensor,
    reference_chosen_P: torch.Tensor,
    reference_rejected_P: torch.Tensor,
    beta: float,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """`-(1 - e) log sigmoid(h) - e log sigmoid(-h)` with `h = beta * ((chosen - reference_chosen) - (rejected -
    reference_rejected))`: float32 [P]. Source: Rafailov et al. 2023, Direct preference optimization; `label_smoothing`
    e, the chance that a label is wrong, Mitchell 2023, A note on DPO with noisy preferences (TRL's `sigmoid` form).

    Each float32 [P], log-probs summed over an answer's tokens; the reference's without gradient.
    """
    margin_P = preference_margin(chosen_P, rejected_P, reference_chosen_P, reference_rejected_P, beta)
    return -(1.0 - label_smoothing) * F.logsigmoid(margin_P) - label_smoothing * F.logsigmoid(-margin_P)


def preference_margin(
    chosen_P: torch.Tensor,
    rejected_P: torch.Tensor,
    reference_chosen_P: torch.Tensor,
    reference_rejected_P: torch.Tensor,
    beta: float,
) -> torch.Tensor:
    """float32 [P], the implicit reward of the chosen answer less that of the rejected one; above 0 it agrees."""
    return beta * ((chosen_P - reference_chosen_P) - (rejected_P - reference_rejected_P))


def bradley_terry(
    chosen_P: torch.Tensor, rejected_P: torch.Tensor, margin_P: torch.Tensor | float = 0.0, centre: float = 0.0
) -> torch.Tensor:
    """`-log sigmoid(chosen - rejected - margin) + centre * (chosen + rejected)^2`: float32 [P], the loss of a reward
    model. Source: Bradley and Terry 1952; margins, by how much better the chosen one is, Touvron et al. 2023, Llama 2;
    `centre`, which keeps scores near 0 where the difference alone says nothing, Eisenstein et al. 2023, Helping or
    herding (0.01 there).

    chosen_P, rejected_P: float32 [P], the scores of the two answers.
    """
    return -F.logsigmoid(chosen_P - rejected_P - margin_P) + centre * (chosen_P + rejected_P) ** 2
