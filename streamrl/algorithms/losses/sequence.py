"""Losses whose ratio is the row's. Arguments and result as the package says, and lengths_R (see `levels`): each token
of a row has the row's loss, so `seq_mean_token_mean` is the mean over rows, and `token_mean` weighs rows by their
length.
"""

import torch

from streamrl.algorithms.corrections import LOG_RATIO_LIMIT
from streamrl.algorithms.levels import geometric

_LOG_LIMIT = 10.0
"""verl's upper bound of GSPO's log ratio, a mean over tokens."""


def gspo(
    logprobs_T: torch.Tensor,
    proximal_T: torch.Tensor,
    advantages_T: torch.Tensor,
    weights_T: torch.Tensor,
    clip_low: float,
    clip_high: float,
    *,
    lengths_R: torch.Tensor,
    through_mean: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`w * max(-A * s, -A * clip(s, 1 - clip_low, 1 + clip_high))` with `s = exp(mean over the row of (logprobs -
    proximal))`. Source: Zheng et al. 2025, GSPO; bounds of 3e-4 and 4e-4 there.

    The paper aggregates it by `seq_mean_token_mean`, and so does verl whatever it is told. Here the key decides, whose
    default is `token_mean`: it weighs rows by their length.

    The gradient goes through the token's own log-prob, `s_t = sg(s) * exp(logprobs - sg(logprobs))`, as in verl
    (GSPO-token of the paper); `through_mean = True` lets it go through the mean, as in TRL. The two have the same
    gradient if A and w are the same over a row and the row is aggregated by its mean.
    """
    log_T = geometric(logprobs_T - proximal_T, lengths_R)
    if not through_mean:
        log_T = log_T.detach() + (logprobs_T - logprobs_T.detach())
    ratio_T = log_T.clamp(max=_LOG_LIMIT).exp()
    plain_T = -advantages_T * ratio_T
    bounded_T = -advantages_T * ratio_T.clamp(1.0 - clip_low, 1.0 + clip_high)
    return weights_T * torch.maximum(plain_T, bounded_T), (bounded_T > plain_T).detach()


def gmpo(
    logprobs_T: torch.Tensor,
    proximal_T: torch.Tensor,
    advantages_T: torch.Tensor,
    weights_T: torch.Tensor,
    clip_low: float,
    clip_high: float,
    *,
    lengths_R: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`-w * A * exp(mean over the row of m)`: the geometric mean of the row's bounded ratios. With `d = logprobs -
    proximal`, m is `min(d, clip_high)` where A > 0 and `max(d, -clip_low)` elsewhere. Source: Zhao et al. 2025,
    Geometric-mean policy optimization; as in verl's geo_mean.

    The bounds are of the LOG ratio: 0.4 in the paper (a ratio of 0.67 to 1.49), 0.2 by verl's default. A and w are the
    row's: of several values over a row each token has the row's ratio and its own A and w (verl takes A's mean and w's
    geometric mean). verl divides by all rows, here the denominators count those that have a token.
    """
    log_T = (logprobs_T - proximal_T).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    bounded_T = torch.where(advantages_T > 0, log_T.clamp(max=clip_high), log_T.clamp(min=-clip_low))
    ratio_T = geometric(bounded_T, lengths_R).exp()
    return -weights_T * advantages_T * ratio_T, (bounded_T != log_T).detach()
