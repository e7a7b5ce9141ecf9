"""The requests of an engine that do not draw from the model's own distribution: whose text follows a grammar, or which
change logits. Pure but for the grammars.

Guaranteed: a request that asks for neither is not looked at; one whose grammar fails ends, and no other. It knows
requests by their ids, and rows of one pass.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from streamrl.engines.torch.logits_processors import adjustments
from streamrl.engines.torch.logits_processors.adjustments import RowTerms
from streamrl.engines.torch.slots import SlotTable
from streamrl.errors import ConfigError
from streamrl.types import GenerationRequest, GenerationResult, Grammar, LongArray

BitMask = npt.NDArray[np.uint32]


class Constraint(Protocol):
    """See `streamrl.models.grammars.Constraint`."""

    def allowed(self) -> BitMask: ...

    def take(self, token_id: int) -> None: ...


class Grammars(Protocol):
    """See `streamrl.models.grammars.Grammars`."""

    def begin(self, grammar: Grammar) -> Constraint: ...


class _Failed:
    """The constraint of a request that is to end for what it says."""

    def __init__(self, fault: str) -> None:
        self._fault = fault

    def allowed(self) -> BitMask:
        raise ValueError(self._fault)

    def take(self, token_id: int) -> None:
        """It goes on with nothing."""


class RowMasks(NamedTuple):
    """What some rows may draw. rows: int64 [K]. allowed: uint32 [K, W], bit i % 32 of number i // 32 for token i."""

    rows: LongArray
    allowed: BitMask

    def applied(self, logits_NV: torch.Tensor) -> torch.Tensor:
        """The logits of all rows, -inf for what is not allowed."""
        bits = np.unpackbits(self.allowed.view(np.uint8), axis=1, bitorder="little", count=logits_NV.shape[1])
        forbidden = torch.from_numpy(bits == 0).to(logits_NV.device)
        rows = torch.from_numpy(self.rows).to(logits_NV.device)
        return logits_NV.index_copy(0, rows, logits_NV.index_select(0, rows).masked_fill_(forbidden, float("-inf")))


class RowChanges(NamedTuple):
    """Of the logits of a pass. First the terms, then the masks."""

    terms: RowTerms | None
    masks: RowMasks | None

    def __bool__(self) -> bool:
        return self.terms is not None or self.masks is not None

    def applied(self, logits_NV: torch.Tensor) -> torch.Tensor:
        """The logits of all rows."""
        logits_NV = logits_NV if self.terms is None else self.terms.applied(logits_NV)
        return logits_NV if self.masks is None else self.masks.applied(logits_NV)


NO_CHANGES = RowChanges(None, None)


class ConstrainedRequests:
    """Of one engine. grammars: None for an engine that follows none. vocab_size: of the model.

    Example:
        faults = [constrained.fault_of(request) for request in requests]   # as they are submitted
        changes, failed = constrained.changes(table)                       # before each pass
        constrained.take({row: request_id}, token_ids)                     # after it
        constrained.finish(results)
    """

    def __init__(self, grammars: Grammars | None, vocab_size: int) -> None:
        self._grammars, self._vocab_size = grammars, vocab_size
        self._constraints: dict[str, Constraint] = {}

    def __bool__(self) -> bool:
        """Whether a request follows a grammar."""
        return bool(self._constraints)

    def change(self, table: SlotTable) -> bool:
        """Whether what a row draws next depends on what it draws now by more than the model."""
        return bool(self._constraints) or bool((table.adjusts[: table.num_rows] & table.taken()).any())

    def fault_of(self, request: GenerationRequest) -> str:
        """Why what it asks for cannot be kept; "" where it can, or where that is nothing. From now on it is known."""
        if fault := adjustments.fault_of(request, self._vocab_size):
            return fault
        if request.grammar is None:
            return ""
        if self._grammars is None:
            return "this engine follows no grammar"
        try:
            constraint = self._grammars.begin(request.grammar)
            for token_id in () if request.so_far is None else request.so_far.token_ids.tolist():
                constraint.take(token_id)
        except (ValueError, ConfigError) as error:
            return f"grammar: {error}"
        self._constraints[request.request_id] = constraint
        return ""

    def changes(self, table: SlotTable) -> tuple[RowChanges, dict[int, str]]:
        """Of the logits of the next pass; and the rows whose grammar failed, with why."""
        masks, failed = self._masks(table)
        return RowChanges(adjustments.row_terms(table), masks), failed

    def _masks(self, table: SlotTable) -> tuple[RowMasks | None, dict[int, str]]:
        allowed: dict[int, BitMask] = {}
        failed: dict[int, str] = {}
        if not self._constraints:
            return None, failed
        for row, name in table.request_ids().items():
            if (constraint := self._constraints.get(name)) is not None:
                try:
                    allowed[row] = constraint.allowed()
                except ValueError as error:
                    failed[row] = f"grammar: {error}"
        rows = np.array(list(allowed), np.int64)
        return RowMasks(rows, np.stack(list(allowed.values()))) if allowed else None, failed

    def take(self, ids: Mapping[int, str], token_ids: LongArray) -> None:
        """The tokens that rows drew, int64 [N]. One that a grammar does not take ends its request at the next pass."""
        for row, name in ids.items():
            if (constraint := self._constraints.get(name)) is not None:
                try:
                    constraint.take(int(token_ids[row]))
                except ValueError as error:
                    self._constraints[name] = _Failed(str(error))

    def finish(self, results: Sequence[GenerationResult]) -> None:
        """These have ended."""
        for result in results if self._constraints else ():
            self._constraints.pop(result.request_id, None)
