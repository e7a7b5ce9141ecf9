"""A write that stopped on its way, told from damage: what decides whether a bad end is cut or is an error.

Every file here is preallocated: zeros lie where nothing was written. A disk writes whole sectors, and a
process that is killed leaves a prefix. So what a write that did not finish leaves behind lacks a sector or its
end: zeros are there. A unit (a header, a frame, an index entry) begins and ends with a byte of at least two
bits, so a flipped bit never makes one of these zero.

Guaranteed: any write cut short at a byte, and any of its sectors missing, is unfinished; one flipped bit in a
unit that was written whole is not, unless a whole sector of the unit is zero by its contents. Not known here: a
sector that the disk had confirmed and then lost as a whole looks like one that was never written. Pure.
"""

from typing import Final

SECTOR_BYTES: Final = 512
"""The smallest piece that a disk writes whole; files start at a multiple of it."""
_ZEROS: Final = bytes(2**16)


def is_zero(data: "bytes | memoryview") -> bool:
    """Whether there is no byte but zeros. Piece by piece: the preallocated rest of a file is megabytes."""
    view = memoryview(data)
    pieces = (bytes(view[at : at + len(_ZEROS)]) for at in range(0, len(view), len(_ZEROS)))
    return all(_ZEROS.startswith(piece) for piece in pieces)


def is_unfinished(data: memoryview, start: int, end: int) -> bool:
    """Whether bytes `start:end` of a preallocated file can be a unit that was not written to its end."""
    if end > len(data) or not data[start] or not data[end - 1]:
        return True
    sectors = range(start - start % SECTOR_BYTES, end, SECTOR_BYTES)
    return any(is_zero(data[max(start, at) : min(end, at + SECTOR_BYTES)]) for at in sectors)
