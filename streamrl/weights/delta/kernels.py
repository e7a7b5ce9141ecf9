"""Changed elements of a tensor as a stream of bits, compiled by numba: written by `encode`, applied by `apply`.

Guaranteed: what `encode` writes `apply` turns into exactly the new bits, whatever these mean as numbers; `apply` reads
inside the stream and writes inside the target whatever the stream holds, and tells a stream that is none by a negative
number. Both release the GIL and take memory for one piece. They do not know tensors, versions or digests.

A tensor is cut into pieces of `PIECE` elements, the last one shorter. A piece is, little-endian, the number of changed
elements (4 bytes), `gap_order`, `step_order`, two zero bytes, then for each changed element in ascending order, bits
from the lowest of a byte on, filled up with zeros to four bytes:
  gap    the elements between it and the changed one before it, x >= 0, as Rice code: x >> gap_order zeros, a one, the
         low gap_order bits of x;
  step   new bits - old bits, modulo the width, zig-zag (-1, 1, -2, 2 as 0, 1, 2, 3), x, as exponential Golomb code:
         let s = x + 2^step_order, of L bits: L - 1 - step_order zeros, a one, the low L - 1 bits of s.
Where changes fall at random a Rice code is within 2 % of the least size that is possible. Steps of an optimiser are a
few units of the last place for most numbers and many for the smallest ones; exponential Golomb codes fit such a tail:
2.4 bits for a bfloat16 number at a learning rate of 1e-6, where zlib takes 4.1 for old bits XOR new bits.

Shapes: N elements of the array that is looked at, P of a piece. Elements are unsigned integers of 16 or 32 bits.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from streamrl.system.kernel_cache import kernel

PIECE = 2**16
HEADER_WORDS = 2
BLOCK = 8
"""Words of 8 bytes that are compared at once: a cache line."""

CUT, OUTSIDE, FOREIGN = -1, -2, -3
"""What `apply` answers for a stream that ends too early, that names an element outside, or that nobody writes so."""

Elements = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]
Words = npt.NDArray[np.uint32]
Stream = npt.NDArray[np.uint8]

# A cached function is compiled again when this file changes, and not when another does that it takes from: so all is
# here.


@intrinsic
def _zeros_below(_: Any, value: Any) -> Any:
    """Zero bits below the lowest one of a uint64; 64 for zero."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), generate


@intrinsic
def _zeros_above(_: Any, value: Any) -> Any:
    """Zero bits above the highest one of a uint64; 64 for zero."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), generate


@kernel(forceinline=True)
def _length(x: int) -> int:
    """Bits of x up to its highest one."""
    return 64 - _zeros_above(np.uint64(x))


def encoded_words(elements: int, item_bytes: int) -> int:
    """Words that `encode` may write for so many elements: one bit of gap and width + 2 of step for each of them."""
    pieces = -(-elements // PIECE)
    return 1 + pieces * (HEADER_WORDS + 1) + -(-elements * (8 * item_bytes + 3) // 32)


@kernel()
def encode(old_N: Elements, new_N: Elements, out: Words) -> int:
    """The pieces of old_N -> new_N, into `out` of `encoded_words(N)` words. Returns the words that were written."""
    indexes, steps = np.empty(PIECE, np.uint32), np.empty(PIECE, np.uint32)
    used = 0
    for start in range(0, len(old_N), PIECE):
        old, new = old_N[start : start + PIECE], new_N[start : start + PIECE]
        count = _changed(old, new, indexes, steps)
        used = _write(indexes[:count], steps[:count], 8 * old.itemsize, out, used)
    return used


@kernel()
def _changed(old_P: Any, new_P: Any, indexes: Words, steps: Words) -> int:
    """Find the elements that differ, with their steps. Returns how many."""
    each = 8 // old_P.itemsize
    whole = len(old_P) // (each * BLOCK) * BLOCK
    old, new = old_P[: whole * each].view(np.uint64), new_P[: whole * each].view(np.uint64)
    count = 0
    for start in range(0, whole, BLOCK):
        differs = old[start] ^ new[start]
        for i in range(start + 1, start + BLOCK):
            differs |= old[i] ^ new[i]
        if differs:
            count = _collect(old, new, start, old_P.itemsize, indexes, count)
    for i in range(whole * each, len(old_P)):
        indexes[count] = i
        count += old_P[i] != new_P[i]
    shift = 64 - 8 * old_P.itemsize
    for i in range(count):
        difference = (np.int64(new_P[indexes[i]]) - np.int64(old_P[indexes[i]])) << shift
        steps[i] = np.uint64((difference << 1) ^ (difference >> 63)) >> np.uint64(shift)
    return count


@kernel(forceinline=True)
def _collect(old: Any, new: Any, start: int, item_bytes: int, indexes: Words, count: int) -> int:
    """Append the indexes of the elements that differ in the words from `start` on."""
    words = np.uint64(0)
    # A mask and not eight branches: which words differ cannot be foretold.
    for i in range(BLOCK):
        words |= np.uint64(old[start + i] != new[start + i]) << np.uint64(i)
    while words:
        word = start + _zeros_below(words)
        words &= words - np.uint64(1)
        differs = old[word] ^ new[word]
        while differs:
            element = _zeros_below(differs) // (8 * item_bytes)
            differs &= ~(np.uint64((1 << 8 * item_bytes) - 1) << np.uint64(element * 8 * item_bytes))
            indexes[count] = word * (8 // item_bytes) + element
            count += 1
    return count


@kernel()
def _write(indexes: Words, steps: Words, width: int, out: Words, used: int) -> int:
    """One piece, from word `used` on. Returns the first word behind it."""
    gap_order, step_order = _gap_order(indexes), _step_order(steps, width)
    out[used] = len(indexes)
    out[used + 1] = gap_order | step_order << 8
    used += HEADER_WORDS
    bits, filled, last = np.uint64(0), 0, -1
    for i in range(len(indexes)):
        gap = np.int64(indexes[i]) - last - 1
        last = np.int64(indexes[i])
        zeros = gap >> gap_order
        while zeros >= 32:
            bits, filled, used = _put(0, 32, bits, filled, out, used)
            zeros -= 32
        bits, filled, used = _put(1 << zeros, zeros + 1, bits, filled, out, used)
        bits, filled, used = _put(gap & ((1 << gap_order) - 1), gap_order, bits, filled, out, used)
        value = np.int64(steps[i]) - 1 + (1 << step_order)
        tail = _length(value) - 1
        bits, filled, used = _put(1 << (tail - step_order), tail - step_order + 1, bits, filled, out, used)
        bits, filled, used = _put(value & ((1 << tail) - 1), tail, bits, filled, out, used)
    out[used] = bits
    return used + (filled > 0)


@kernel(forceinline=True)
def _put(value: int, width: int, bits: Any, filled: int, out: Words, used: int) -> tuple[Any, int, int]:
    """Append the low `width` <= 32 bits, of which there are no others, to less than 32 bits that wait."""
    bits |= np.uint64(value) << np.uint64(filled)
    filled += width
    # The word is written whether it is full or not: no branch.
    out[used] = bits & np.uint64(0xFFFFFFFF)
    full = filled >> 5
    return bits >> np.uint64(full << 5), filled & 31, used + full


@kernel()
def _gap_order(indexes: Words) -> int:
    """The order with 2^order <= mean gap < 2^(order + 1), or 0: a bit for each element of a piece at most."""
    count = len(indexes)
    if not count:
        return 0
    mean = (np.int64(indexes[count - 1]) + 1 - count) // count
    return max(_length(mean) - 1, 0)


@kernel()
def _step_order(steps: Words, width: int) -> int:
    """The order of the least size, taken from how many steps have each length.

    A step of `beyond` more bits than the order takes order + 1 + 2 * beyond bits or two less, and is counted as between
    them: so the steps take width + 2 bits at most on the average, since the order that is the width takes width + 1.
    """
    lengths = np.zeros(width + 1, np.int64)
    for i in range(len(steps)):
        lengths[_length(np.int64(steps[i]) - 1)] += 1
    best, least = 0, np.int64(0)
    for order in range(width + 1):
        size = np.int64(0)
        for length in range(width + 1):
            beyond = length - order
            size += lengths[length] * (order + 1 + (2 * beyond - (beyond > 1) if beyond > 0 else 0))
        if order == 0 or size < least:
            best, least = order, size
    return best


@kernel()
def apply(stream: Stream, at: int, target_N: Any) -> int:
    """Make old elements new ones in place, by the pieces from byte `at` of the stream on.

    target_N: whole pieces, or the last ones of a tensor. Returns the first byte behind its pieces, or what is wrong.
    """
    for start in range(0, len(target_N), PIECE):
        at = _apply_piece(stream, at, target_N[start : start + PIECE])
        if at < 0:
            break
    return at


@kernel()
def _apply_piece(stream: Stream, at: int, target_P: Any) -> int:
    if at + 4 * HEADER_WORDS > len(stream):
        return CUT
    width = 8 * target_P.itemsize
    count, orders = _word(stream, at), _word(stream, at + 4)
    gap_order, step_order = orders & 0xFF, orders >> 8
    if gap_order > 32 or step_order > width:
        return FOREIGN
    at += 4 * HEADER_WORDS
    bits, filled, index = np.uint64(0), 0, -1
    for _ in range(count):
        zeros, bits, filled, at = _take_zeros(stream, at, bits, filled)
        low, bits, filled, at = _take(gap_order, stream, at, bits, filled)
        if zeros < 0 or low < 0:
            return CUT
        # A long run of zeros, shifted, must not become an index that is negative.
        index += 1 + (min(zeros, PIECE) << gap_order) + low
        if index >= len(target_P):
            return OUTSIDE
        zeros, bits, filled, at = _take_zeros(stream, at, bits, filled)
        if zeros < 0:
            return CUT
        if zeros + step_order > width:
            return FOREIGN
        low, bits, filled, at = _take(zeros + step_order, stream, at, bits, filled)
        if low < 0:
            return CUT
        step = low + (1 << (zeros + step_order)) - (1 << step_order) + 1
        target_P[index] = np.int64(target_P[index]) + ((step >> 1) ^ -(step & 1))
    return FOREIGN if bits else at


@kernel(forceinline=True)
def _take_zeros(stream: Stream, at: int, bits: Any, filled: int) -> tuple[int, Any, int, int]:
    """Take zeros and the one behind them. Returns how many, or -1 at the stream's end, and what waits then."""
    zeros = 0
    while not bits:
        if at + 4 > len(stream):
            return -1, bits, 0, at
        zeros += filled
        bits, filled, at = np.uint64(_word(stream, at)), 32, at + 4
    more = _zeros_below(bits)
    return zeros + more, bits >> np.uint64(more) >> np.uint64(1), filled - more - 1, at


@kernel(forceinline=True)
def _take(width: int, stream: Stream, at: int, bits: Any, filled: int) -> tuple[int, Any, int, int]:
    """Take `width` <= 32 bits where less than 32 wait. Returns them, or -1 at the stream's end, and what waits then."""
    if filled < width:
        if at + 4 > len(stream):
            return -1, bits, 0, at
        bits |= np.uint64(_word(stream, at)) << np.uint64(filled)
        filled, at = filled + 32, at + 4
    return np.int64(bits & np.uint64((1 << width) - 1)), bits >> np.uint64(width), filled - width, at


@kernel(forceinline=True)
def _word(stream: Stream, at: int) -> int:
    low = np.int64(stream[at]) | np.int64(stream[at + 1]) << 8
    return low | np.int64(stream[at + 2]) << 16 | np.int64(stream[at + 3]) << 24
