"""Sums of products over eight lanes, for compiled kernels: one order of adding, whichever processor runs it.

Not loops of the language, since a compiler makes a sum wide only where it may reorder it.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic

LANES = 8
_VECTOR = ir.VectorType(ir.FloatType(), LANES)


@intrinsic
def dot(_: Any, x: Any, y: Any) -> Any:
    """sum of x[i] * y[i]: of whole eights, lane l sums the i with i % 8 == l; then the halves of the lanes on each
    other; then the rest in order.

    x, y: float32 [N], C-contiguous, of equal length (not checked).
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
        _add_rest(builder, left, right, length, rest)
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


@intrinsic
def dots(_: Any, x: Any, r: Any, weight: Any, o: Any, out: Any, p: Any) -> Any:
    """out[p + a, o + b] = `dot` of x[r + a] and weight[o + b], to the bit, of two rows and four of the weight: eight
    sums at once, so that none waits for itself and each number is loaded for several.

    x: float32 [R, I], weight: float32 [O, I], out: float32 [P, >= O], C-contiguous; r + 1 < R, o + 3 < O and p + 1 < P
    (not checked).
    """
    for each in (x, weight, out):
        if not (isinstance(each, types.Array) and (each.dtype, each.ndim, each.layout) == (types.float32, 2, "C")):
            raise TypingError(f"dots wants C-contiguous float32 matrices, not {each}")

    def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        matrices = [
            context.make_array(each)(context, builder, value)
            for each, value in zip((x, weight, out), arguments[::2], strict=True)
        ]
        length, columns = (builder.extract_value(matrix.shape, 1) for matrix in matrices[::2])
        at = builder.add(builder.mul(arguments[5], columns), arguments[3])
        rows = _rows_of(builder, matrices[0].data, arguments[1], length, 2)
        weights = _rows_of(builder, matrices[1].data, arguments[3], length, 4)
        pairs = [(row, each) for row in rows for each in weights]
        sums = _across_eight(builder, _sums_of_eights(builder, pairs, length))
        for place, (row, each) in enumerate(pairs):
            total = cgutils.alloca_once_value(builder, builder.extract_element(sums, ir.IntType(32)(place)))
            _add_rest(builder, row, each, length, total)
            index = builder.add(at, columns) if place >= 4 else at
            builder.store(
                builder.load(total), builder.gep(matrices[2].data, [builder.add(index, length.type(place % 4))])
            )
        return context.get_dummy_value()

    return types.void(x, types.int64, weight, types.int64, out, types.int64), generate


def _rows_of(builder: Any, data: Any, first: Any, length: Any, count: int) -> list[Any]:
    """Where `count` rows of a matrix begin, from row `first` on."""
    begin = builder.mul(first, length)
    return [builder.gep(data, [builder.add(begin, builder.mul(length, length.type(place)))]) for place in range(count)]


def _sums_of_eights(builder: Any, pairs: list[tuple[Any, Any]], length: Any) -> list[Any]:
    """Of each pair of vectors, lane l the sum of the products i with i % 8 == l, of whole eights."""
    totals = [cgutils.alloca_once_value(builder, _VECTOR([0.0] * LANES)) for _ in pairs]
    blocks = builder.udiv(length, length.type(LANES))
    with cgutils.for_range(builder, blocks) as loop:
        at = builder.mul(loop.index, length.type(LANES))
        lanes = {data: _lanes(builder, data, at) for pair in pairs for data in pair}
        for (left, right), total in zip(pairs, totals, strict=True):
            product = builder.fmul(lanes[left], lanes[right])
            builder.store(builder.fadd(builder.load(total), product), total)
    return [builder.load(total) for total in totals]


def _across_eight(builder: Any, vectors: list[Any]) -> Any:
    """Lane n the sum of the lanes of vector n, added as `_across` does."""
    width = LANES
    while width > 1:
        width //= 2
        # Of each two vectors the lower halves of what is left of them, and the upper ones.
        starts = range(0, 2 * LANES, 2 * width)
        lower = [start + lane for start in starts for lane in range(width)]
        mask = [ir.Constant(ir.VectorType(ir.IntType(32), LANES), [lane + up for lane in lower]) for up in (0, width)]
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [builder.fadd(*(builder.shuffle_vector(left, right, one) for one in mask)) for left, right in pairs]
    (only,) = vectors
    return only


def _add_rest(builder: Any, left: Any, right: Any, length: Any, total: Any) -> None:
    """Add the products behind the whole eights to what lies in `total`, in order."""
    whole = builder.mul(builder.udiv(length, length.type(LANES)), length.type(LANES))
    with cgutils.for_range_slice(builder, whole, length, length.type(1)) as (i, _):
        product = builder.fmul(*(builder.load(builder.gep(data, [i])) for data in (left, right)))
        builder.store(builder.fadd(builder.load(total), product), total)
