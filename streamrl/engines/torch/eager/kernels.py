"""What the decoder does besides matrix products, in float32 on a CPU, compiled by numba.

Guaranteed: a row's numbers depend on that row's inputs only, to the bit: every function walks its rows one by one,
with loops whose length is the row's own, and every operation is that of IEEE 754 in the order that is written here.
So the compiler is free in nothing that shows: two processes agree, one that compiled and one that read the cache too.
A number that is not finite makes its row's result not finite; it never disappears.

Why compiled: a step of a small model is a hundred library calls of a few microseconds each, and attention through
the library reads keys up to a common rounded length. All arrays are C-contiguous, but where it says view.

Shapes: T packed tokens, N rows that decode, W cache writes, E hidden size, H heads, K kv heads, D head_dim,
G = H + 2 K heads of a projection, I intermediate size, C capacity of a slot, V vocabulary.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic

from streamrl.system.kernel_cache import kernel
from streamrl.types import FloatArray, LongArray

Bits = npt.NDArray[np.int32]

LANES = 8
_VECTOR = ir.VectorType(ir.FloatType(), LANES)

# No `fastmath`: with it a function that this process compiled and the same one from the cache differ in their last
# bits. Sums have several terms in flight by hand instead. (A cached function is compiled again when this file changes,
# and not when another does that it takes from: so all is here.)

# exp(x) = 2^k * exp(r) with |r| <= ln(2) / 2; the polynomial and the two parts of ln(2) are those of Cephes, expf.
_LOG2_E = np.float32(1.44269504088896341)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_P0, _P1, _P2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
_P3, _P4, _P5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
_LOWEST = np.float32(-87.3)
_ROWS = 32
_ZERO, _HALF, _ONE = np.float32(0), np.float32(0.5), np.float32(1)


@intrinsic
def dot(_: Any, x: Any, y: Any) -> Any:
    """sum of x[i] * y[i]: of whole eights, lane l sums the i with i % 8 == l; then the halves of the lanes on each
    other; then the rest in order.

    x, y: float32 [N], C-contiguous, of equal length (not checked). Not a loop of the language, since a compiler makes
    such a sum wide only where it may reorder it.
    """
    for each in (x, y):
        if not (isinstance(each, types.Array) and (each.dtype, each.ndim, each.layout) == (types.float32, 1, "C")):
            raise TypingError(f"dot wants a C-contiguous float32 vector, not {each}")

    def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        left, right = (
            context.make_array(each)(context, builder, value).data
            for each, value in zip((x, y), arguments, strict=True)
        )
        length = builder.extract_value(context.make_array(x)(context, builder, arguments[0]).shape, 0)
        blocks = builder.udiv(length, length.type(LANES))
        total = cgutils.alloca_once_value(builder, _VECTOR([0.0] * LANES))
        with cgutils.for_range(builder, blocks) as loop:
            at = builder.mul(loop.index, length.type(LANES))
            product = builder.fmul(_lanes(builder, left, at), _lanes(builder, right, at))
            builder.store(builder.fadd(builder.load(total), product), total)
        rest = cgutils.alloca_once_value(builder, _across(builder, builder.load(total)))
        whole = builder.mul(blocks, length.type(LANES))
        with cgutils.for_range_slice(builder, whole, length, length.type(1)) as (i, _):
            product = builder.fmul(*(builder.load(builder.gep(data, [i])) for data in (left, right)))
            builder.store(builder.fadd(builder.load(rest), product), rest)
        return builder.load(rest)

    return types.float32(x, y), generate


def _lanes(builder: Any, data: Any, at: Any) -> Any:
    """Eight neighbours from `at` on."""
    return builder.load(builder.bitcast(builder.gep(data, [at]), _VECTOR.as_pointer()), align=4)


def _across(builder: Any, lanes: Any) -> Any:
    """The sum of the lanes, halves on each other."""
    width = LANES
    while width > 1:
        width //= 2
        halves = [
            builder.shuffle_vector(lanes, lanes, ir.Constant(ir.VectorType(ir.IntType(32), width), list(part)))
            for part in (range(width), range(width, 2 * width))
        ]
        lanes = builder.fadd(*halves)
    return builder.extract_element(lanes, ir.IntType(32)(0))


@kernel()
def multiply(x_RI: FloatArray, weight_OI: FloatArray, out_RO: FloatArray) -> None:
    """out = x weight^T, each number the `dot` of a row and a row of the weight. A block of rows at a time, so that
    they stay near while the weight passes by."""
    for first in range(0, x_RI.shape[0], _ROWS):
        last = min(first + _ROWS, x_RI.shape[0])
        for o in range(weight_OI.shape[0]):
            weight = weight_OI[o]
            for r in range(first, last):
                out_RO[r, o] = dot(x_RI[r], weight)


@kernel()
def exponentials(x: FloatArray, bits: Bits) -> None:
    """x[i] = exp(x[i]) in place, for x <= 0: 2 units in the last place; exactly 0 below -87.3. `bits` is scratch of
    the same length."""
    powers = bits.view(np.float32)
    for i in range(x.shape[0]):
        value = x[i]
        inside = _LOWEST if value < _LOWEST else value  # keeps NaN
        k = np.floor(inside * _LOG2_E + _HALF)
        r = inside - k * _LN2_HIGH - k * _LN2_LOW
        p = ((((_P0 * r + _P1) * r + _P2) * r + _P3) * r + _P4) * r + _P5
        bits[i] = (np.int32(k) + np.int32(127)) << np.int32(23)
        p = p * r * r + r + _ONE
        x[i] = _ZERO if value < _LOWEST else p
    for i in range(x.shape[0]):
        x[i] *= powers[i]


@kernel()
def rms_norm(x_TE: FloatArray, weight_E: FloatArray, eps: np.float32, out_TE: FloatArray) -> None:
    """out = x / sqrt(mean(x^2) + eps) * weight."""
    for t in range(x_TE.shape[0]):
        _norm_row(x_TE[t], weight_E, eps, out_TE[t])


@kernel()
def _norm_row(x: FloatArray, weight: FloatArray, eps: np.float32, out: FloatArray) -> None:
    scale = _ONE / np.sqrt(dot(x, x) / np.float32(x.shape[0]) + eps)
    for e in range(x.shape[0]):
        out[e] = x[e] * scale * weight[e]


@kernel()
def rotate(
    heads_TGD: FloatArray,
    norm_RD: FloatArray,
    eps: np.float32,
    cos_CD: FloatArray,
    sin_CD: FloatArray,
    positions_T: LongArray,
    rotated: int,
    row_D: FloatArray,
) -> None:
    """Norm (with norm_RD; none when it is empty) and rotate the first `rotated` heads of each token, in place.
    row_D is scratch."""
    half = heads_TGD.shape[2] // 2
    for t in range(heads_TGD.shape[0]):
        cos, sin = cos_CD[positions_T[t]], sin_CD[positions_T[t]]
        for g in range(rotated):
            head = heads_TGD[t, g]
            if norm_RD.shape[0]:
                _norm_row(head, norm_RD[g], eps, row_D)
            else:
                row_D[:] = head
            for d in range(half):
                head[d] = row_D[d] * cos[d] + row_D[d + half] * sin[d]
                head[d + half] = row_D[d + half] * cos[d + half] + row_D[d] * sin[d + half]


@kernel()
def store(heads_TGD: FloatArray, source_W: LongArray, targets: LongArray, lanes: FloatArray) -> None:
    """Copy the key and value heads of packed token source[w] to lines targets[w * 2K ...] of lanes [lines, D]."""
    written = len(targets) // len(source_W)
    first = heads_TGD.shape[1] - written
    for w in range(len(source_W)):
        for h in range(written):
            lanes[targets[w * written + h]] = heads_TGD[source_W[w], first + h]


@kernel()
def attend(
    heads_TGD: FloatArray,
    keys_SKCD: FloatArray,
    values_SKCD: FloatArray,
    slot_N: LongArray,
    last_N: LongArray,
    scores_C: FloatArray,
    bits_C: Bits,
    out_NHD: FloatArray,
) -> None:
    """softmax(query key^T / sqrt(D)) value of rows 0..N-1, each over the keys 0..last of its slot. Scores and bits are
    scratch."""
    scale = np.float32(1.0 / math.sqrt(heads_TGD.shape[2]))
    repeat = out_NHD.shape[1] // keys_SKCD.shape[1]
    for n in range(len(slot_N)):
        slot = slot_N[n]
        length = last_N[n] + 1
        scores, bits = scores_C[:length], bits_C[:length]
        for head in range(out_NHD.shape[1]):
            _score(heads_TGD[n, head], keys_SKCD[slot, head // repeat], scale, scores)
            total = _weigh(scores, bits)
            _gather(scores, values_SKCD[slot, head // repeat], _ONE / total, out_NHD[n, head])


@kernel()
def _score(query: FloatArray, keys: FloatArray, scale: np.float32, scores: FloatArray) -> None:
    """Products of one query with each key."""
    for j in range(len(scores)):
        scores[j] = dot(query, keys[j]) * scale


@kernel()
def _weigh(scores: FloatArray, bits: Bits) -> np.float32:
    """scores = exp(scores - max); returns their sum."""
    top = _highest(scores)
    for j in range(len(scores)):
        scores[j] -= top
    exponentials(scores, bits)
    return _sum(scores)


@kernel()
def _highest(x: FloatArray) -> np.float32:
    """The maximum."""
    a, b, c, d = x[0], x[0], x[0], x[0]
    whole = len(x) // 4 * 4
    for i in range(0, whole, 4):
        a = x[i] if x[i] > a else a
        b = x[i + 1] if x[i + 1] > b else b
        c = x[i + 2] if x[i + 2] > c else c
        d = x[i + 3] if x[i + 3] > d else d
    for i in range(whole, len(x)):
        a = x[i] if x[i] > a else a
    return max(max(a, b), max(c, d))


@kernel()
def _sum(x: FloatArray) -> np.float32:
    """Four sums, that none waits for the other."""
    a, b, c, d = _ZERO, _ZERO, _ZERO, _ZERO
    whole = len(x) // 4 * 4
    for i in range(0, whole, 4):
        a += x[i]
        b += x[i + 1]
        c += x[i + 2]
        d += x[i + 3]
    for i in range(whole, len(x)):
        a += x[i]
    return (a + b) + (c + d)


@kernel()
def _gather(weights: FloatArray, values: FloatArray, scale: np.float32, out: FloatArray) -> None:
    """out = scale * sum of weights[j] * values[j]. Four values at once: the sum is loaded and stored once for them."""
    out[:] = _ZERO
    whole = len(weights) // 4 * 4
    for j in range(0, whole, 4):
        a, b, c, e = weights[j], weights[j + 1], weights[j + 2], weights[j + 3]
        for d in range(out.shape[0]):
            out[d] += a * values[j, d] + b * values[j + 1, d] + c * values[j + 2, d] + e * values[j + 3, d]
    for j in range(whole, len(weights)):
        a = weights[j]
        for d in range(out.shape[0]):
            out[d] += a * values[j, d]
    for d in range(out.shape[0]):
        out[d] *= scale


@kernel()
def gate(both_TI: FloatArray, bits_I: Bits, out_TI: FloatArray) -> None:
    """out = silu(gate) * up, where both [T, 2 I] holds gate, then up. bits_I is scratch."""
    inner = out_TI.shape[1]
    for t in range(out_TI.shape[0]):
        both, out = both_TI[t], out_TI[t]
        for i in range(inner):
            out[i] = -abs(both[i])
        exponentials(out, bits_I)
        for i in range(inner):
            weight = _ONE if both[i] >= _ZERO else out[i]
            out[i] = both[i] * weight / (_ONE + out[i]) * both[inner + i]


@kernel()
def draw(
    scores_NV: FloatArray,
    greedy_N: npt.NDArray[np.bool_],
    uniform_N: FloatArray,
    weights_V: FloatArray,
    bits_V: Bits,
    tokens_N: LongArray,
    logprobs_N: FloatArray,
) -> None:
    """Draw from softmax(scores), or take the best token of a row that is greedy. Writes the tokens and their
    log-probabilities; a row with a number that is not finite, -inf aside, gives a log-probability that is not.
    weights and bits are scratch."""
    for n in range(len(tokens_N)):
        scores = scores_NV[n]
        weights_V[:] = scores
        total = _weigh(weights_V, bits_V)
        best = 0
        for v in range(len(scores)):
            if scores[v] > scores[best]:
                best = v
        token = best if greedy_N[n] else _pick(weights_V, uniform_N[n] * total)
        tokens_N[n] = token
        logprobs_N[n] = scores[token] - scores[best] - np.float32(math.log(total))


@kernel()
def _pick(weights: FloatArray, target: np.float32) -> int:
    """The first token whose cumulative weight is over the target; rounding aside there is one. Never one of weight
    zero, unless all are."""
    token, reached = 0, _ZERO
    for v in range(len(weights)):
        if weights[v] > _ZERO:
            token = v
            reached += weights[v]
            if reached > target:
                break
    return token
