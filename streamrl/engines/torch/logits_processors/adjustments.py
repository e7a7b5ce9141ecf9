"""What requests change of the logits before tokens are drawn: bias, penalties, a least length. As vLLM does it. Pure.

Guaranteed: a row whose request changes nothing is not looked at; a row's terms depend on its own tokens alone.
Log-probs are of the distribution that is left.
"""

from typing import NamedTuple

import numpy as np
import torch

from streamrl.engines.torch.slots import SlotTable
from streamrl.types import FloatArray, GenerationRequest, LongArray

MOST_NAMED = 2048
"""Tokens that a request names, by a bias or as a stop token."""
TOO_EARLY = 1e25
"""Is taken from the logit of a stop token that comes too early: its share is 0. A grammar that leaves nothing else
takes more from all others (`cuda.logits.FORBIDDEN`), and then it comes all the same."""


class Terms(NamedTuple):
    """Of one row: ids int64 [E], each once; bias, repetition, penalty float32 [E]. A logit x becomes y - penalty, with
    y = x + bias, divided by `repetition` where it is positive, and multiplied by it where it is not."""

    ids: LongArray
    bias: FloatArray
    repetition: FloatArray
    penalty: FloatArray

    def applied(self, logits_E: torch.Tensor) -> torch.Tensor:
        """The logits of these ids."""
        device = logits_E.device
        bias, repetition, penalty = (torch.from_numpy(one).to(device) for one in self[1:])
        raised = logits_E.float() + bias
        scaled = torch.where(raised > 0, raised / repetition, raised * repetition)
        return (scaled - penalty).to(logits_E.dtype)


class RowTerms(NamedTuple):
    """Of some rows. rows: int64 [K]. terms: K of them."""

    rows: LongArray
    terms: tuple[Terms, ...]

    def applied(self, logits_NV: torch.Tensor) -> torch.Tensor:
        """The logits of all rows."""
        logits_NV = logits_NV.clone()
        for row, terms in zip(self.rows.tolist(), self.terms, strict=True):
            ids = torch.from_numpy(terms.ids).to(logits_NV.device)
            logits_NV[row, ids] = terms.applied(logits_NV[row, ids])
        return logits_NV


def row_terms(table: SlotTable) -> RowTerms | None:
    """Of the next token of each running row; None where no request changes anything."""
    adjusted = table.adjusted()
    if not adjusted:
        return None
    found = [terms_of(request, prompt, completion) for _, request, prompt, completion in adjusted]
    return RowTerms(np.array([row for row, *_ in adjusted], np.int64), tuple(found))


def terms_of(request: GenerationRequest, prompt: LongArray, completion: LongArray) -> Terms:
    """Of the token behind these: ids of the prompt and of the completion so far."""
    asked = request.adjustments
    assert asked is not None, "a request that changes nothing"
    biased = np.array([token_id for token_id, _ in asked.logit_bias], np.int64)
    stops = np.array(request.stop_token_ids if len(completion) < asked.min_tokens else (), np.int64)
    said, counts = np.unique(completion, return_counts=True)
    seen = np.union1d(prompt, said) if asked.repetition_penalty != 1 else np.zeros(0, np.int64)
    counted = said if asked.presence_penalty or asked.frequency_penalty else np.zeros(0, np.int64)
    ids = np.unique(np.concatenate((biased, stops, seen, counted)))
    bias, penalty = np.zeros(len(ids), np.float32), np.zeros(len(ids), np.float32)
    repetition = np.ones(len(ids), np.float32)
    bias[np.searchsorted(ids, biased)] = [value for _, value in asked.logit_bias]
    repetition[np.searchsorted(ids, seen)] = asked.repetition_penalty
    if len(counted):
        penalty[np.searchsorted(ids, counted)] = asked.presence_penalty + asked.frequency_penalty * counts
    penalty[np.searchsorted(ids, stops)] = TOO_EARLY
    return Terms(ids, bias, repetition, penalty)


def fault_of(request: GenerationRequest, vocab_size: int) -> str:
    """Why its changes cannot be made; "" where they can, or where it has none."""
    asked = request.adjustments
    if asked is None:
        return ""
    outside = [token_id for token_id, _ in asked.logit_bias if not 0 <= token_id < vocab_size]
    if outside:
        return f"logit_bias names the token {outside[0]}; the vocabulary has {vocab_size}"
    numbers = (asked.presence_penalty, asked.frequency_penalty, *(value for _, value in asked.logit_bias))
    if not np.isfinite(numbers).all() or not 0 < asked.repetition_penalty < np.inf:
        return f"{asked} has a number that is not finite, or a repetition_penalty that is not above 0"
    named = len(asked.logit_bias) + len(request.stop_token_ids)
    return "" if named <= MOST_NAMED else f"logit_bias and stop tokens name {named} tokens; at most {MOST_NAMED}"
