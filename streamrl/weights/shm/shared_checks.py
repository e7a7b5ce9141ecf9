"""The digests of a version, which the replicas of a node check together: they map the same memory.

    replica 1   embedding ........ layer 3 ....         each takes the largest tensor that nobody is at, and leaves
    replica 2   layer 1 ... layer 2 ... norm .          proofs on a board beside the versions; then it looks again
                                                        at what others were at, and checks what has no proof yet

Guarantees: a tensor counts as checked only if this process read all of its bytes, or one that has the run's key did, no
longer than `FRESH_S` before. What is torn, old, forged or of another version is no proof. Nobody waits for anybody: a
process that stops or dies in the middle leaves its share to the others. Two at the same tensor do it twice, no more.
It does not know how versions are mapped. Without torch.
"""

import contextlib
import hashlib
import hmac
import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import xxhash

from streamrl.clock import Clock, SystemClock
from streamrl.weights.delta.files import Content
from streamrl.weights.manifest import TensorEntry, WeightManifest

BOARD = "checks"
FRESH_S = 1.0
"""So that replicas that hear of a version one after the other share the work, and one that joins later does not trust
what was true then."""

_SLOT = struct.Struct("<16sd16sd")
"""Who is at it: the version's tag, and since when. The proof that it held, and when its check began."""
_CLAIM = struct.Struct("<16sd")


def find_damage(manifest: WeightManifest, content: Content) -> str:
    """The first tensor whose digest does not hold; "" when all do. All by this process."""
    return next(filter(None, (_damage(entry, content) for entry in manifest.tensors)), "")


class SharedChecks:
    """Checks the versions of one run, for one replica. Any thread may call.

    Example:
        lent = mappings.lend(Path(manifest.location))
        fault = checks.find_damage(manifest, lent.content, Path(manifest.location).parent, lent.inode)
    """

    def __init__(self, key: bytes, clock: Clock | None = None) -> None:
        """clock: the machine's, which all processes of a node read, by default."""
        self._key = key
        self._clock = clock if clock is not None else SystemClock()

    def find_damage(self, manifest: WeightManifest, content: Content, folder: Path, inode: int) -> str:
        """A tensor whose digest does not hold; "" when all do.

        folder: of the versions, with the board. inode: of the file that `content` is. Without room for a board each
        checks alone.
        """
        with contextlib.ExitStack() as opened:
            try:
                board = opened.enter_context(_board(folder, len(manifest.tensors)))
            except OSError:
                return find_damage(manifest, content)
            what = str((manifest.version, manifest.digest, inode)).encode()
            return _Checking(self._key, self._clock, what, manifest.tensors, content, board).find()


class _Checking:
    """One process at one version."""

    def __init__(
        self,
        key: bytes,
        clock: Clock,
        what: bytes,
        tensors: Sequence[TensorEntry],
        content: Content,
        board: mmap.mmap,
    ) -> None:
        self._key = key
        self._clock = clock
        self._tag = hashlib.blake2b(what, digest_size=16).digest()
        self._tensors = tensors
        self._content = content
        self._board = board
        self._oldest = clock.now() - FRESH_S

    def find(self) -> str:
        others = []
        for number in sorted(range(len(self._tensors)), key=lambda number: -self._tensors[number].nbytes):
            if self._is_somebody_at(number):
                others.append(number)
            elif fault := self._check(number):
                return fault
        return next(filter(None, map(self._check, others)), "")

    def _is_somebody_at(self, number: int) -> bool:
        """Now, or a moment ago. Else it is this process."""
        tag, since = _CLAIM.unpack_from(self._board, number * _SLOT.size)
        if tag == self._tag and since >= self._oldest:
            return True
        _CLAIM.pack_into(self._board, number * _SLOT.size, self._tag, self._clock.now())
        return False

    def _check(self, number: int) -> str:
        """One tensor, unless it is proven."""
        place = number * _SLOT.size + _CLAIM.size
        proof, began = _CLAIM.unpack_from(self._board, place)
        if began >= self._oldest and hmac.compare_digest(proof, self._proof(number, began)):
            return ""
        began = self._clock.now()
        fault = _damage(self._tensors[number], self._content)
        if not fault:
            _CLAIM.pack_into(self._board, place, self._proof(number, began), began)
        return fault

    def _proof(self, number: int, began: float) -> bytes:
        said = self._tag + struct.pack("<qd", number, began)
        return hashlib.blake2b(said, key=self._key, digest_size=16, person=b"weights checked").digest()


def _damage(entry: TensorEntry, content: Content) -> str:
    found = xxhash.xxh3_64_hexdigest(content[entry.offset : entry.offset + entry.nbytes].data)
    if found == entry.digest:
        return ""
    return f"tensor {entry.name!r} has digest {found}, its manifest says {entry.digest}: the bytes were damaged"


@contextlib.contextmanager
def _board(folder: Path, slots: int) -> Iterator[mmap.mmap]:
    """Of the folder, made by whoever comes first and never cut. Its room is reserved: a full memory shows here."""
    fd = os.open(folder / BOARD, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, slots * _SLOT.size)
        board = mmap.mmap(fd, slots * _SLOT.size)
    finally:
        os.close(fd)
    with board:
        yield board
