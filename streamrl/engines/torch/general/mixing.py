"""A pass through a module that mixes tokens outside of attention: prompts from empty states, each running row from its
own.

Guaranteed: prompts of one length are one call, and so are all rows; no row is padded, so none's state is another's.
What prompts leave is there for their first rows in the same pass.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from streamrl.engines.torch.eager.passes import to_device
from streamrl.engines.torch.eager.plan import Plan
from streamrl.engines.torch.general.states import RowStates, SlotStates
from streamrl.models.mixers import Mix


@dataclass(frozen=True, slots=True)
class Prompts:
    """`count` prompts of one length, and the first of them again behind these. tokens: int64, their places among the
    packed tokens. slots, rows: int64 [K], slot `slots[i]` begins with prompt `rows[i]`."""

    count: int
    length: int
    tokens: torch.Tensor
    slots: torch.Tensor
    rows: torch.Tensor


class Pass(Protocol):
    """What is asked of a pass on the device (`general.decoder.GeneralPass`)."""

    @property
    def rows(self) -> int: ...

    @property
    def kept(self) -> int: ...

    @property
    def slots(self) -> int: ...

    @property
    def last(self) -> torch.Tensor: ...

    @property
    def slot_of_row(self) -> torch.Tensor: ...

    @property
    def row_of_slot(self) -> torch.Tensor | None: ...

    @property
    def prompts(self) -> tuple[Prompts, ...]: ...


def prompts_of(plan: Plan, min_rows: int, device: torch.device) -> tuple[Prompts, ...]:
    """The prompts that a pass reads, by length; the first of a length again until they have `min_rows` tokens."""
    running = len(plan.slot_positions)
    if plan.source is None or len(plan.slots) == running:
        return ()
    source, slots, places = (array[running:] for array in (plan.source, plan.slots, plan.places))
    first = np.flatnonzero(places == 0)
    lengths = np.diff(np.append(first, len(places)))
    starts, owners = source[first], slots[first]
    found = []
    for length in np.unique(lengths).tolist():
        mine = lengths == length
        begins, rows = np.unique(starts[mine], return_inverse=True)
        count, wanted = len(begins), -(-min_rows // length)
        begins = np.append(begins, np.repeat(begins[:1], max(0, wanted - count)))
        tokens = (begins[:, None] + np.arange(length)).reshape(-1)
        found.append(Prompts(count, length, *(to_device(x, device) for x in (tokens, owners[mine], rows.reshape(-1)))))
    return tuple(found)


def mix_tokens(module: int, forward: Mix, hidden_1TH: torch.Tensor, current: Pass, states: SlotStates) -> torch.Tensor:
    """[1, T, H]; zeros for padding."""
    out = torch.zeros_like(hidden_1TH)
    for prompts in current.prompts:
        rows = RowStates()
        mixed = forward(hidden_1TH[0].index_select(0, prompts.tokens).unflatten(0, (-1, prompts.length)), cache=rows)
        real = prompts.count * prompts.length
        out[0].index_copy_(0, prompts.tokens[:real], mixed.flatten(0, 1)[:real].to(out.dtype))
        states.write(module, prompts.slots, prompts.rows, rows)
    if current.rows:
        states.clear_of(module, torch.nonzero(current.last == 0).flatten())
        rows = states.read(module, current.slot_of_row, current.kept)
        mixed = forward(hidden_1TH[0, : current.kept, None], cache=rows)[:, 0]
        out[0, : current.rows] = mixed[: current.rows]
        every = torch.arange(current.slots, device=out.device)
        states.write(module, every, every if current.row_of_slot is None else current.row_of_slot, rows)
    return out
