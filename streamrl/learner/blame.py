"""Whose row it was: what a step's error says beside that a number of it was not finite."""

from collections.abc import Sequence

from streamrl.errors import NonFiniteError
from streamrl.learner.backend import LearnerBackend
from streamrl.learner.judged import Judged, Part, bad_judgement
from streamrl.learner.mini_batches import MiniBatch


def with_its_row(
    error: NonFiniteError,
    backend: LearnerBackend,
    mini_batches: Sequence[MiniBatch],
    parts: Sequence[Sequence[Part]],
) -> NonFiniteError:
    """Collective, after `step_batch` raised `error` on every rank. The same error, with the first row of this rank that
    has a log-prob under the weights as they are which is not finite, its replica and the version that sampled it.

    parts: of each mini-batch and share the rows that were packed.
    """
    bad = []
    for mini_batch, own in zip(mini_batches, parts, strict=True):
        for share, part in zip(mini_batch.shares, own, strict=True):
            given = backend.logprobs(share)  # of all: on another rank a share may hold what this one's does not
            bad += [bad_judgement(Judged(*one, part)) for one in zip(share, given, strict=True)]
    first = next(filter(None, bad), "")
    found = f"a log-prob is {first}" if first else "the log-probs of this rank's rows are all finite"
    return NonFiniteError(f"{error} ({found})")
