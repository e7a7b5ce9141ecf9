"""Whose row it was: what a step's error says beside that a number of it was not finite."""

from collections.abc import Callable, Sequence

import torch

from streamrl.errors import NonFiniteError
from streamrl.learner.backend import LearnerBackend
from streamrl.learner.batch.mini_batches import MiniBatch
from streamrl.learner.batch.packing import PackedBatch
from streamrl.learner.batch.scored_batch import Part, ScoredTokens, bad_score

Logprobs = Callable[[Sequence[PackedBatch]], Sequence[torch.Tensor]]
"""Collective. float32 [K] for each pack, on the CPU."""


def with_its_row(
    error: NonFiniteError,
    backend: LearnerBackend,
    mini_batches: Sequence[MiniBatch],
    parts: Sequence[Sequence[Part]],
    reference: Logprobs | None = None,
) -> NonFiniteError:
    """Collective, after `step_batch` raised `error` on every rank. The same error, with the first row of this rank that
    has a log-prob which is not finite, under the weights as they are or under the reference, its replica and the
    version that sampled it.

    parts: of each mini-batch and share the rows that were packed. reference: None where there is none.
    """
    asked = {"a log-prob": backend.logprobs} | ({} if reference is None else {"a log-prob of the reference": reference})
    bad = {what: _first_bad(logprobs, mini_batches, parts) for what, logprobs in asked.items()}
    found = " and ".join(f"{what} is {row}" for what, row in bad.items() if row)
    fine = "the log-probs of this rank's rows are all finite"
    beside = "" if reference is None else ", and so are the reference's"
    return NonFiniteError(f"{error} ({found or fine + beside})")


def _first_bad(logprobs: Logprobs, mini_batches: Sequence[MiniBatch], parts: Sequence[Sequence[Part]]) -> str:
    """Collective. As `bad_score`, of all packs."""
    bad = []
    for mini_batch, own in zip(mini_batches, parts, strict=True):
        for share, part in zip(mini_batch.shares, own, strict=True):
            given = logprobs(share)  # of all: on another rank a share may hold what this one's does not
            bad += [bad_score(ScoredTokens(*one, part)) for one in zip(share, given, strict=True)]
    return next(filter(None, bad), "")
