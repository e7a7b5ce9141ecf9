"""What one forward pass reads and writes, laid out on the host in numpy, without looking at the model.

A pass takes packed tokens: first the decode rows, one token for each running slot, then the rests, tokens that are read
as a decode row reads its own, then the tokens of prompts to prefill, end to end, then padding up to the least number of
rows. Short prompts come before long ones, and are read as rests are. Nothing is padded to a common length but the
attention of long prompts, in groups of equal rounded length. Slots that start with the same prompt share its prefill
and their first decode row: it is computed for the first of them, and written to all.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from streamrl.engines.torch.admission import Rest, Segment
from streamrl.engines.torch.eager.attention import round_up
from streamrl.types import LongArray


@dataclass(frozen=True, slots=True)
class PrefillGroup:
    """M segments whose length rounds up to `padded`.

    gather: int64 [M * padded], the packed token at each padded place (padding repeats the segment's last).
    flat: int64 [t], the padded places that hold tokens. packed: int64 [t], the same places among packed tokens.
    """

    padded: int
    gather: LongArray
    flat: LongArray
    packed: LongArray


@dataclass(frozen=True, slots=True)
class Plan:
    """One pass over T packed tokens, of which the first `decode_rows` give logits for the N running slots.

    slot_positions: int64 [N], the last position that each slot sees. slot_of_row int64 [decode_rows] and
    row_of_slot int64 [N]: who computes for whom; both None when row i is slot i.
    rest_slots: int64 [r], the slot of each token of a rest or of a short prompt; they are the packed tokens behind the
    decode rows.
    source: int64 [W], the packed tokens whose keys and values are stored; None means the first W, in order.
    slots, places: int64 [W], the slot and position where each goes. scored: int64 [S], the packed tokens of prompts of
    which log-probs are told; None without any.
    """

    token_ids: LongArray
    positions: LongArray
    decode_rows: int
    slot_positions: LongArray
    slot_of_row: LongArray | None
    row_of_slot: LongArray | None
    rest_slots: LongArray
    groups: tuple[PrefillGroup, ...]
    source: LongArray | None
    slots: LongArray
    places: LongArray
    scored: LongArray | None = None


def plan_pass(
    token_ids: LongArray,
    positions: LongArray,
    segments: Sequence[Segment],
    rests: Sequence[Rest],
    min_rows: int,
    short: int = 0,
) -> Plan:
    """Lay out a pass: the next token of each running slot (int64 [N] ids and positions), and what to read besides.
    short: prompts of so many tokens at most are read as rests are."""
    slots = np.arange(len(token_ids))
    slot_of_row, row_of_slot = _share_rows(len(slots), segments)
    rows = len(slots) if slot_of_row is None else len(slot_of_row)
    parts = [token_ids if slot_of_row is None else token_ids[slot_of_row]]
    places = [positions if slot_of_row is None else positions[slot_of_row]]
    source, write_slots, write_places = row_of_slot, slots, positions
    groups: tuple[PrefillGroup, ...] = ()
    scored: LongArray | None = None
    rest_slots = np.repeat(_column(rest.slot for rest in rests), _column(len(rest.token_ids) for rest in rests))
    if rests:
        ramps = [np.arange(rest.start, rest.start + len(rest.token_ids)) for rest in rests]
        parts += [rest.token_ids for rest in rests]
        places += ramps
        source = np.concatenate((slots if source is None else source, rows + np.arange(len(rest_slots))))
        write_slots = np.concatenate((write_slots, rest_slots))
        write_places = np.concatenate((write_places, *ramps))
    prompts = sorted((one for one in segments if len(one.token_ids)), key=lambda one: len(one.token_ids) > short)
    if prompts:
        lengths = _column(len(segment.token_ids) for segment in prompts)
        starts = rows + len(rest_slots) + np.cumsum(lengths) - lengths
        parts += [segment.token_ids for segment in prompts]
        places.append(_ramps(lengths))
        scored = _scored(dict(zip(map(id, prompts), starts.tolist(), strict=True)), segments)
        by_cache = int((lengths <= short).sum())
        groups = _group(starts[by_cache:], lengths[by_cache:])
        first_slots = _column(segment.slots[0] for segment in prompts[:by_cache])
        rest_slots = np.concatenate((rest_slots, np.repeat(first_slots, lengths[:by_cache])))
        owners, ramp, read = _written(prompts, starts, lengths)
        source = np.concatenate((slots if source is None else source, read))
        write_slots = np.concatenate((write_slots, owners))
        write_places = np.concatenate((write_places, ramp))
    missing = min_rows - sum(map(len, parts))
    if missing > 0:
        parts.append(np.zeros(missing, dtype=np.int64))
        places.append(parts[-1])
        source = slots if source is None else source
    return Plan(
        token_ids=np.concatenate(parts),
        positions=np.concatenate(places),
        decode_rows=rows,
        slot_positions=positions,
        slot_of_row=slot_of_row,
        row_of_slot=row_of_slot,
        rest_slots=rest_slots,
        groups=groups,
        source=source,
        slots=write_slots,
        places=write_places,
        scored=scored,
    )


def _written(
    prompts: Sequence[Segment], starts: LongArray, lengths: LongArray
) -> tuple[LongArray, LongArray, LongArray]:
    """(slot, place, packed token) of each key that prompts write, to all their slots."""
    copies = _column(len(segment.slots) for segment in prompts)
    owners = _column(slot for segment in prompts for slot in segment.slots)
    copied = np.repeat(lengths, copies)
    ramp = _ramps(copied)
    return np.repeat(owners, copied), ramp, np.repeat(np.repeat(starts, copies), copied) + ramp


def _scored(starts: Mapping[int, int], segments: Sequence[Segment]) -> LongArray | None:
    """Packed places of the tokens behind which something is told, in the order of the segments. starts: of those that
    have tokens, by identity."""
    told = [(id(one), len(one.targets.token_ids)) for one in segments if one.targets is not None and len(one.token_ids)]
    found = [starts[one] + np.arange(count) for one, count in told]
    return np.concatenate(found) if found else None


def _share_rows(num_slots: int, segments: Sequence[Segment]) -> tuple[LongArray, LongArray] | tuple[None, None]:
    """(slot_of_row, row_of_slot), or (None, None) when no segment has several slots."""
    followers = [slot for segment in segments for slot in segment.slots[1:]]
    if not followers:
        return None, None
    leaders = [segment.slots[0] for segment in segments for _ in segment.slots[1:]]
    computes = np.ones(num_slots, dtype=np.bool_)
    computes[followers] = False
    row_of_slot = np.cumsum(computes) - 1
    row_of_slot[followers] = row_of_slot[leaders]
    return np.flatnonzero(computes), row_of_slot


def _column(values: Iterable[int]) -> LongArray:
    return np.fromiter(values, np.int64)


def _ramps(lengths: LongArray) -> LongArray:
    """0..length-1 for each length, end to end."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)


def _group(starts: LongArray, lengths: LongArray) -> tuple[PrefillGroup, ...]:
    padded = round_up(lengths)
    groups = []
    for size in np.unique(padded).tolist():
        member = padded == size
        ramp = np.arange(size)
        inside = ramp < lengths[member, None]
        gather = starts[member, None] + np.minimum(ramp, lengths[member, None] - 1)
        groups.append(PrefillGroup(size, gather.reshape(-1), np.flatnonzero(inside), gather[inside]))
    return tuple(groups)
