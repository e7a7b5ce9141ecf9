"""Losses: one number for each trained token, from log-probs and advantages.
It imports `streamrl.algorithms` and torch.
Pure functions of flat tensors: a token that must not be trained is not in them, so no mask and no padding
exist here. Aggregation into a scalar is `aggregation`'s; what the ratio is against is `proximal`'s.

Each takes (logprobs_T, proximal_T, advantages_T, weights_T), float32 [T], of which only the first carries gradient,
then by name what LOSS_SETTINGS says, `lengths_R` if it is in ROW_LOSSES, and `teacher_T` if in TEACHER_LOSSES. Each
returns (loss_T float32 [T], clipped_T bool [T]: where a bound decides and the token gives no gradient).
"""

from collections.abc import Callable

import torch

from streamrl.algorithms.losses.clipped import cispo, ppo, sapo
from streamrl.algorithms.losses.covariance import clip_cov, kl_cov
from streamrl.algorithms.losses.masked import dppo, opd, reinforce
from streamrl.algorithms.losses.sequence import gmpo, gspo

LOSSES: dict[str, Callable[..., tuple[torch.Tensor, torch.Tensor]]] = {
    "ppo": ppo,
    "reinforce": reinforce,
    "gspo": gspo,
    "cispo": cispo,
    "sapo": sapo,
    "gmpo": gmpo,
    "dppo": dppo,
    "clip_cov": clip_cov,
    "kl_cov": kl_cov,
    "opd": opd,
}

LOSS_SETTINGS: dict[str, tuple[str, ...]] = {
    "ppo": ("clip_low", "clip_high", "dual_clip"),
    "reinforce": (),
    "gspo": ("clip_low", "clip_high"),
    "cispo": ("clip_low", "clip_high"),
    "sapo": ("sapo_tau_positive", "sapo_tau_negative"),
    "gmpo": ("clip_low", "clip_high"),
    "dppo": ("clip_low", "clip_high", "divergence"),
    "clip_cov": ("clip_low", "clip_high", "cov_share", "cov_low", "cov_high"),
    "kl_cov": ("cov_share", "cov_kl"),
    "opd": (),
}
"""Keys of `[learner.algorithm]` that a loss takes, under the same names."""

ROW_LOSSES = frozenset({"gspo", "gmpo"})
"""Losses whose ratio is the row's; they take lengths_R, int64 [R] (see `levels`)."""

TEACHER_LOSSES = frozenset({"opd"})
"""Losses that take teacher_T, float32 [T], log-probs under a reference policy; advantages have no part in them."""
