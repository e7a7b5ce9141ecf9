"""Damaged and forged deltas: refused with a DataError, or they come to exactly the newer version all the same."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
import xxhash
from support.kernels import skip_without_kernels
from support.weights.delta_versions import delta_of, holds, mutated, pair

from streamrl.errors import DataError
from streamrl.weights.delta.delta import apply_delta
from streamrl.weights.delta.format import DeltaHeader, encode_header, read_header
from streamrl.weights.delta.kernels import CUT, FOREIGN, OUTSIDE, PIECE, apply, encode, encoded_words

skip_without_kernels()

OLD, NEW = pair()
DELTA = delta_of(OLD, NEW)
CANARY = 64


def applied(delta: bytes) -> str:
    """Apply to a fresh target among canaries. Returns why it was refused, or "" when it came out right."""
    around = np.full(NEW[0].total_bytes + 2 * CANARY, 0xEE, np.uint8)
    target, error = around[CANARY:-CANARY], ""
    try:
        apply_delta(delta, OLD[0], NEW[0], target, base=OLD[1], threads=1)
    except DataError as refused:
        error = str(refused)
        assert "weight delta" in error
    else:
        assert holds(NEW[0], target), "a wrong version was taken for the right one"
    outside = np.ones(len(around), np.bool_)
    for entry in NEW[0].tensors:
        outside[CANARY + entry.offset : CANARY + entry.offset + entry.nbytes] = False
    assert (around[outside] == 0xEE).all(), "bytes outside of the tensors were written"
    return error


def blocks(data: bytes) -> tuple[DeltaHeader, list[bytes]]:
    header, at = read_header(memoryview(data))
    found = []
    for record in header.tensors:
        found.append(data[at : at + record.nbytes])
        at += record.nbytes
    return header, found


def forged(change: Callable[[str, bytes], bytes]) -> bytes:
    """The delta with each block put through `change`, sizes and digests made to match."""
    header, contents = blocks(DELTA)
    contents = [change(record.name, block) for record, block in zip(header.tensors, contents, strict=True)]
    records = [
        msgspec.structs.replace(record, nbytes=len(block), digest=xxhash.xxh3_64_hexdigest(block))
        for record, block in zip(header.tensors, contents, strict=True)
    ]
    return encode_header(msgspec.structs.replace(header, tensors=records)) + b"".join(contents)


def with_header(**change: Any) -> bytes:
    header, contents = blocks(DELTA)
    return encode_header(msgspec.structs.replace(header, **change)) + b"".join(contents)


def with_record(tensor: str, **change: Any) -> bytes:
    records = [
        msgspec.structs.replace(record, **change) if record.name == tensor else record
        for record in blocks(DELTA)[0].tensors
    ]
    return with_header(tensors=records)


def chances(count: int) -> Iterator[random.Random]:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    for number in range(count):
        yield random.Random(f"{seed}/{number}")


def test_it_comes_out_right_as_it_is():
    assert applied(DELTA) == ""
    assert applied(forged(lambda _, block: block)) == ""


def test_every_flip_of_the_header_is_refused():
    _, end = read_header(memoryview(DELTA))
    for place in range(end):
        flipped = bytearray(DELTA)
        flipped[place] ^= 1 << place % 8
        assert applied(bytes(flipped)), place


def test_every_cut_and_every_extension_is_refused():
    for size in (*range(0, 600), *range(600, len(DELTA), 97), len(DELTA) - 1):
        assert applied(DELTA[:size]), size
    assert "cut off or extended" in applied(DELTA + b"\0")


def test_random_damage_is_refused_or_harmless():
    for chance in chances(2500):
        applied(mutated(DELTA, chance))


def test_random_damage_under_good_digests_is_refused_or_harmless():
    refusals = [
        applied(forged(lambda _, block, chance=chance: mutated(block, chance) if chance.random() < 0.4 else block))
        for chance in chances(2500)
    ]
    for why in ("too early", "outside of it", "no list of changed", "left over", "it has digest", "not 22"):
        assert any(why in refusal for refusal in refusals), why


TEMPTING = [-1, 0, 1, 22, 2**31, 2**63, 2**64 - 1, "", "same", "changed", "full", "a", "b", None, [], [0, 5], 0.5]


def change_header(fields: dict[str, Any], chance: random.Random) -> None:
    """Change a field, or a field of a row, or move, shorten, extend or double a row."""
    rows = fields["tensors"]
    row = chance.choice(rows)
    kind = chance.randrange(5)
    if kind == 0:
        fields[chance.choice(["run_id", "base", "version", "more"])] = chance.choice(TEMPTING)
    elif kind == 1:
        row[chance.randrange(len(row))] = chance.choice(TEMPTING)
    elif kind == 2:
        row[chance.randrange(len(row))] = chance.choice(chance.choice(rows))
    elif kind == 3:
        rows.remove(row)
        rows.insert(chance.randrange(len(rows) + 1), chance.choice([row, row[:-1], [*row, 0]]))
    else:
        rows.append(row)


def test_random_changes_of_a_header_under_a_good_digest_are_refused_or_harmless():
    header, contents = blocks(DELTA)
    encoded = msgspec.msgpack.encode(header)
    for chance in chances(2000):
        fields = msgspec.msgpack.decode(encoded)
        for _ in range(chance.choice([1, 1, 2])):
            change_header(fields, chance)
        body = msgspec.msgpack.encode(fields)
        prelude = DELTA[:8] + len(body).to_bytes(8, "little") + xxhash.xxh3_64_intdigest(body).to_bytes(8, "little")
        applied(prelude + body + b"".join(contents))


@pytest.mark.parametrize(
    ("delta", "why"),
    [
        (b"", "cut off in its first 24 bytes"),
        (b"SRLDLT\x02\n" + DELTA[8:], r"begins with b'SRLDLT\x02\n', this release reads b'SRLDLT\x01\n'"),
        (DELTA[:8] + (2**63).to_bytes(8, "little") + DELTA[16:], f"header of {2**63} bytes is cut off or damaged"),
        (with_header(run_id="run-2"), "run 'run-2'"),
        (with_header(base=(0, 3)), "that of 0.3 -> 0.5"),
        (with_header(version=(1, 5)), "that of 0.4 -> 1.5"),
        (with_header(tensors=[]), "it is of 0 tensors, the manifest of 5"),
        (with_record("b", name="x"), "tensor 'b' has digest"),
        (with_record("b", result="0" * 16), "tensor 'b' has digest"),
        (with_record("b", nbytes=2**62), "it was cut off or extended"),
        (with_record("b", digest="0" * 16), "tensor 'b': its block has digest"),
        (with_record("b", coding="same"), "tensor 'b' comes as same with"),
        (with_record("b", coding="full"), "tensor 'b' comes as full with"),
        (with_record("grows", coding="changed"), "tensor 'grows' comes as changed, and the older version has none"),
        (with_record("same", coding="changed"), "tensor 'same': its block ends too early"),
    ],
)
def test_each_claim_of_a_header_is_held_against_the_manifests(delta, why):
    assert why in applied(delta)


def test_a_base_is_never_written_and_the_first_checks_leave_the_target_alone_too():
    target = OLD[1].copy()
    grown = np.concatenate([target, np.zeros(NEW[0].total_bytes - len(target), np.uint8)])
    kept = grown.copy()
    damaged = bytearray(DELTA)
    damaged[-1] ^= 1
    with pytest.raises(DataError, match=r"tensor 'grows': its block has digest"):
        apply_delta(bytes(damaged), OLD[0], NEW[0], grown)
    assert (grown == kept).all()


def stream(*words: int) -> np.ndarray:
    return np.array(words, np.uint32).view(np.uint8)


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ((), CUT),
        ((1,), CUT),
        ((0, 0), 8),
        ((1, 0), CUT),
        ((1, 0, 0), CUT),
        ((2**32 - 1, 0, *[2**32 - 1] * 40), OUTSIDE),
        ((1, 33), FOREIGN),
        ((1, 33 << 8), FOREIGN),
        ((1, 1 << 16), FOREIGN),
        ((1, 0, *[0] * 2050, 1), OUTSIDE),
        ((1, 32, 1, 2**32 - 1), OUTSIDE),
        ((1, 0, 1, 0, 1), FOREIGN),
        ((0, 0, 1), 8),
        ((1, 0, 0b111), FOREIGN),
        ((1, 0, 0b11), 12),
    ],
)
def test_a_stream_is_read_inside_and_its_faults_are_told(words, answer, dtype):
    assert apply(stream(*words), 0, np.zeros(10, dtype)) == answer


def test_a_run_of_zeros_that_is_longer_than_any_number_names_no_element():
    data = np.zeros(8 + 2**28 + 64, np.uint8)
    data[0], data[4], data[8 + 2**28] = 1, 32, 1
    assert apply(data, 0, np.zeros(10, np.uint16)) == OUTSIDE


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_any_bytes_are_read_inside_and_written_inside(dtype):
    for chance in chances(3000):
        length = chance.choice([1, 5, 100, PIECE + 3])
        around = np.full(length + 32, 0x5A, dtype)
        header = stream(chance.choice([1, 3, length, 2**31]), chance.randrange(20) | chance.randrange(20) << 8)
        data = bytes(header) + chance.randbytes(chance.randrange(0, 90))
        answer = apply(np.frombuffer(data, np.uint8), 0, around[16:-16])
        assert answer in (CUT, OUTSIDE, FOREIGN) or answer <= len(data)
        assert (around[:16] == 0x5A).all()
        assert (around[-16:] == 0x5A).all()


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
@pytest.mark.parametrize("length", [1, 2, 31, PIECE, PIECE + 1])
def test_the_room_that_is_asked_for_is_enough_wherever_and_whatever_the_changes(dtype, length):
    generator = np.random.default_rng(3)
    old = generator.integers(0, 2 ** (8 * np.dtype(dtype).itemsize), length).astype(dtype)
    places = np.arange(length)
    ends = (places < 900) | (places == length - 1)
    for where in (ends, *(places % every == 0 for every in (1, 2, 3, 5, 40, PIECE))):
        for reach in (1, 2, 5, 2**9, 2**15, 2 ** (8 * old.itemsize) - 1):
            steps = np.where(where, generator.integers(1, reach, length, endpoint=True), 0)
            others, target = old + steps.astype(dtype), old.copy()
            out = np.full(encoded_words(length, old.itemsize) + 8, 0x5A5A5A5A, np.uint32)
            used = encode(old, others, out[:-8])
            assert (out[-8:] == 0x5A5A5A5A).all()
            assert apply(out[:used].view(np.uint8), 0, target) == 4 * used
            assert (target == others).all()
