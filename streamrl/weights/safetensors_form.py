"""A version as a safetensors file: the header that is sent before its tensors, and what a reader checks. Without
torch.

The tensors follow in the order of the version's file, without the gaps between them. The metadata say which version it
is, and the digest of each tensor, so that a reader that has the file knows that it is the version, to the bit.

A version that holds adapters has the names of peft's layout, and in its metadata what a `LoraConfig` is told.
"""

import json
import struct
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import xxhash

from streamrl.errors import DataError
from streamrl.models.adapters.names import PEFT_PREFIX, peft_facts
from streamrl.types import Version
from streamrl.weights.manifest import TensorEntry, WeightManifest, combined_digest, entry_bytes

DTYPES: Final = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
"""Number formats of a manifest, in the words of safetensors."""
LENGTH: Final = struct.Struct("<Q")
MAX_HEADER_BYTES: Final = 100_000_000
"""As safetensors itself has it."""


def in_order(manifest: WeightManifest) -> list[TensorEntry]:
    """The tensors as they lie in the version's file, which is the order in which they are sent."""
    return sorted(manifest.tensors, key=lambda entry: entry.offset)


def header_of(manifest: WeightManifest) -> bytes:
    """The bytes before the first tensor: length and header, a multiple of 8 as the tensors' alignment wants."""
    entries = in_order(manifest)
    adapters, prefix = manifest.adapters, ""
    metadata = {"format": "pt", "version": str(manifest.version), "digest": manifest.digest}
    if adapters is not None:
        prefix = PEFT_PREFIX
        facts = peft_facts((entry.name for entry in entries), adapters.rank, adapters.alpha)
        metadata["adapters"] = json.dumps(facts)
    digests = {prefix + entry.name: entry.digest for entry in entries}
    header: dict[str, Any] = {"__metadata__": {**metadata, "digests": json.dumps(digests)}}
    end = 0
    for entry in entries:
        offsets = [end, end + entry.nbytes]
        header[prefix + entry.name] = {
            "dtype": DTYPES[entry.dtype],
            "shape": list(entry.shape),
            "data_offsets": offsets,
        }
        end += entry.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(LENGTH.size + len(text)) % 8)
    return LENGTH.pack(len(text)) + text


class _Tensor(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class IncomingVersion:
    """Checks a file of that form while it comes, piece by piece.

    Example:
        incoming = IncomingVersion()
        for piece in pieces:
            incoming.add(piece)
        incoming.finish()
        print(incoming.version, incoming.digest)
    """

    def __init__(self) -> None:
        self.version = Version(0, 0)
        """Which it is, once the header is here."""
        self.digest = ""
        self.adapters: dict[str, Any] | None = None
        """Of a version of adapters, what peft's `LoraConfig` is told."""
        self._head = bytearray()
        self._waiting: list[TensorEntry] = []
        """Those that have not come whole, the next one last."""
        self._hasher = xxhash.xxh3_64()
        self._missing = 0
        """Bytes of the tensor that comes now."""

    def add(self, piece: bytes) -> None:
        """Raises DataError for bytes that are not what the header says, or no such file."""
        if not self.digest:
            self._head += piece
            piece = self._begin()
        view = memoryview(piece)
        while len(view):
            if not self._waiting:
                raise DataError(f"weights: {len(view)} bytes behind the last tensor of version {self.version}")
            part, view = view[: self._missing], view[self._missing :]
            self._hasher.update(part)
            self._missing -= len(part)
            self._next()

    def finish(self) -> None:
        """All has come. Raises DataError when it has not."""
        if not self.digest or self._waiting:
            lacking = f"{len(self._waiting)} tensors of version {self.version}" if self.digest else "its header"
            raise DataError(f"weights: the file ends before {lacking} came whole")

    def _begin(self) -> bytes:
        """Read the header, once it is here whole; what came of the tensors."""
        if len(self._head) < LENGTH.size:
            return b""
        (length,) = LENGTH.unpack_from(self._head)
        if length > MAX_HEADER_BYTES:
            raise DataError(f"weights: a header of {length} bytes is none of safetensors")
        end = LENGTH.size + length
        if len(self._head) < end:
            return b""
        entries = self._read(bytes(self._head[LENGTH.size : end]))
        rest = bytes(self._head[end:])
        self._head.clear()
        self._waiting = entries[::-1]
        self._missing = entries[0].nbytes if entries else 0
        self._next()
        return rest

    def _read(self, text: bytes) -> list[TensorEntry]:
        try:
            header = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
            metadata = msgspec.json.decode(header.pop("__metadata__"), type=dict[str, str])
            digests = msgspec.json.decode(metadata["digests"], type=dict[str, str])
            tensors = {name: msgspec.json.decode(raw, type=_Tensor) for name, raw in header.items()}
            adapters = msgspec.json.decode(metadata.get("adapters", "null"), type=dict[str, Any] | None)
            entries = _entries(tensors, digests, "" if adapters is None else PEFT_PREFIX)
            incarnation, step = map(int, metadata["version"].split("."))
            digest = metadata["digest"]
        except (msgspec.MsgspecError, KeyError, ValueError) as error:
            raise DataError(f"weights: the header is not that of a published version: {error!r}") from error
        self.version = Version(incarnation, step)
        if combined_digest(entries) != digest:
            raise DataError(f"weights: version {self.version}: the digests of its tensors do not come to {digest!r}")
        self.digest, self.adapters = digest, adapters
        return entries

    def _next(self) -> None:
        """Go on behind each tensor that is whole."""
        while self._waiting and not self._missing:
            entry = self._waiting.pop()
            found = self._hasher.hexdigest()
            if found != entry.digest:
                what = f"tensor {entry.name!r} has digest {found}, the version's manifest says {entry.digest}"
                raise DataError(f"weights: version {self.version}: {what}: the bytes were damaged on their way")
            self._hasher.reset()
            self._missing = self._waiting[-1].nbytes if self._waiting else 0


def _entries(tensors: Mapping[str, _Tensor], digests: Mapping[str, str], prefix: str) -> list[TensorEntry]:
    """In the order of their bytes, which lie side by side. prefix: what each name has in the file before that in the
    version. Raises DataError, KeyError."""
    names = {word: name for name, word in DTYPES.items()}
    entries, end = [], 0
    for name, one in sorted(tensors.items(), key=lambda pair: pair[1].data_offsets):
        dtype = names[one.dtype]
        size = entry_bytes(dtype, one.shape)
        if one.data_offsets != (end, end + size):
            raise DataError(f"weights: tensor {name!r} is said to lie at {one.data_offsets}, not at {end, end + size}")
        entries.append(TensorEntry(name.removeprefix(prefix), dtype, one.shape, end, size, digests[name]))
        end += size
    return entries
