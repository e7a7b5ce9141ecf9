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

import numpy as np
import numpy.typing as npt

from streamrl.engines.torch.eager.lanes import dot, dots
from streamrl.system.kernel_cache import kernel
from streamrl.types import FloatArray, LongArray

Bits = npt.NDArray[np.int32]

# No `fastmath`: with it a function that this process compiled and the same one from the cache differ in their last
# bits. Sums have several terms in flight by hand instead.

# exp(x) = 2^k * exp(r) with |r| <= ln(2) / 2; the polynomial and the two parts of ln(2) are those of Cephes, expf.
_LOG2_E = np.float32(1.44269504088896341)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_P0, _P1, _P2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
_P3, _P4, _P5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
_LOWEST = np.float32(-87.3)
_ROWS = 32
_ZERO, _HALF, _ONE = np.float32(0), np.float32(0.5), np.float32(1)


@kernel()
def multiply(x_RI: FloatArray, weight_OI: FloatArray, out_RO: FloatArray) -> None:
    """out = x weight^T, each number the `dot` of a row and a row of the weight. A block of rows at a time, so that
    they stay near while the weight passes by."""
    whole = weight_OI.shape[0] // 4 * 4
    for first in range(0, x_RI.shape[0], _ROWS):
        last = min(first + _ROWS, x_RI.shape[0])
        paired = first + (last - first) // 2 * 2
        for o in range(0, whole, 4):
            for r in range(first, paired, 2):
                dots(x_RI, r, weight_OI, o, out_RO, r)
            for r in range(paired, last):
                for each in range(o, o + 4):
                    out_RO[r, each] = dot(x_RI[r], weight_OI[each])
        for o in range(whole, weight_OI.shape[0]):
            for r in range(first, last):
                out_RO[r, o] = dot(x_RI[r], weight_OI[o])


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
    scores_2C: FloatArray,
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
        bits = bits_C[:length]
        for head in range(0, out_NHD.shape[1], 1 if repeat % 2 else 2):
            together = 1 if repeat % 2 else 2
            keys, values = keys_SKCD[slot, head // repeat], values_SKCD[slot, head // repeat]
            _score(heads_TGD[n], head, together, keys, length, scores_2C)
            first, total = scores_2C[0, :length], _weigh_scaled(scores_2C[0, :length], scale, bits)
            if together == 1:
                _gather(first, values, _ONE / total, out_NHD[n, head])
                continue
            second = scores_2C[1, :length]
            other = _weigh_scaled(second, scale, bits)
            _gather_two(first, second, values, _ONE / total, _ONE / other, out_NHD[n, head], out_NHD[n, head + 1])


@kernel()
def _score(
    heads_GD: FloatArray, head: int, together: int, keys_CD: FloatArray, length: int, out_2C: FloatArray
) -> None:
    """Products of one query head, or of two, with the first `length` keys."""
    whole = length // 4 * 4 if together == 2 else 0
    for j in range(0, whole, 4):
        dots(heads_GD, head, keys_CD, j, out_2C, 0)
    for each in range(together):
        for j in range(whole, length):
            out_2C[each, j] = dot(heads_GD[head + each], keys_CD[j])


@kernel()
def _weigh_scaled(scores: FloatArray, scale: np.float32, bits: Bits) -> np.float32:
    for j in range(len(scores)):
        scores[j] *= scale
    return _weigh(scores, bits)


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
def _gather_two(
    first: FloatArray,
    second: FloatArray,
    values: FloatArray,
    scale: np.float32,
    other: np.float32,
    out: FloatArray,
    out_two: FloatArray,
) -> None:
    """`_gather` by two rows of weights, of which each value is read once."""
    out[:] = _ZERO
    out_two[:] = _ZERO
    whole = len(first) // 4 * 4
    for j in range(0, whole, 4):
        a, b, c, e = first[j], first[j + 1], first[j + 2], first[j + 3]
        p, q, r, s = second[j], second[j + 1], second[j + 2], second[j + 3]
        for d in range(out.shape[0]):
            u, v, w, x = values[j, d], values[j + 1, d], values[j + 2, d], values[j + 3, d]
            out[d] += a * u + b * v + c * w + e * x
            out_two[d] += p * u + q * v + r * w + s * x
    for j in range(whole, len(first)):
        a, p = first[j], second[j]
        for d in range(out.shape[0]):
            out[d] += a * values[j, d]
            out_two[d] += p * values[j, d]
    for d in range(out.shape[0]):
        out[d] *= scale
        out_two[d] *= other


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
