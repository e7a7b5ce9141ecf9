"""What a published version is: its tensors, where they lie, and a signature over all of it.

A version is whole, or holds low-rank adapters only (`learner.lora`) and names its base: the weights that they change,
published once for each incarnation, whose signed manifest it carries.

Guarantees: a manifest that passes `verify` was signed by a holder of the run's key, for this run, and nothing
in it was changed since. The tensor digests (XXH3-64) tell damage and mix-ups, not a forger: whoever may write
the bytes is decided by the file mode, who may announce them by the signature. It does not know tensors, files
or time, and imports neither torch nor numpy.
"""

import hashlib
import hmac
from collections.abc import Iterable
from typing import Literal

import msgspec
import xxhash

from streamrl.errors import ConfigError, DataError
from streamrl.models.adapters.names import adapted_weight, adapter_of
from streamrl.types import Version

MIN_KEY_BYTES = 16
"""A shorter HMAC key could be guessed."""

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Number formats that weights may have, with the bytes of one element."""


class TensorEntry(msgspec.Struct, frozen=True, array_like=True):
    """One tensor of a version.

    dtype is a key of `ITEM_BYTES`. offset and nbytes count bytes in the version's file. digest is XXH3-64 of
    the tensor's contiguous bytes, 16 hex digits.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    digest: str


class AdapterFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the adapters of a version are to: the signed manifest of their base. They count alpha / rank times."""

    base: "WeightManifest"
    rank: int
    alpha: float

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


class WeightManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One version of the weights.

    adapters: None where the version is whole.

    source says how the bytes travel, location where they are: for `shm` the path of a file that holds exactly
    `total_bytes`. digest depends on names, formats, shapes and contents only, so equal weights have equal
    digests in every run. signature is HMAC-SHA256 in hex, "" while unsigned.
    """

    run_id: str
    version: Version
    source: Literal["shm"]
    location: str
    tensors: tuple[TensorEntry, ...]
    total_bytes: int
    digest: str
    adapters: AdapterFacts | None = None
    signature: str = ""

    @property
    def base(self) -> "WeightManifest | None":
        """What the version cannot be used without; None where it is whole."""
        return self.adapters.base if self.adapters is not None else None


def base_version(version: Version) -> Version:
    """Under which the base of a version's adapters is published: before the first step of its incarnation."""
    return Version(version.incarnation, -1)


def is_base(version: Version) -> bool:
    return version.step < 0


def combined_digest(entries: Iterable[TensorEntry]) -> str:
    """XXH3-64, 16 hex digits, over (name, dtype, shape, digest) of each entry in the order of the names."""
    rows = sorted((entry.name, entry.dtype, entry.shape, entry.digest) for entry in entries)
    return xxhash.xxh3_64_hexdigest(msgspec.msgpack.encode(rows))


def sign(manifest: WeightManifest, key: bytes) -> WeightManifest:
    """The manifest with its signature. Raises ConfigError for a key under 16 bytes."""
    return msgspec.structs.replace(manifest, signature=_signature(manifest, key))


def verify(manifest: WeightManifest, key: bytes, run_id: str) -> None:
    """Raise DataError unless the manifest belongs to `run_id`, is signed with `key` and describes itself
    well."""
    what = f"weight manifest {manifest.version}"
    if manifest.run_id != run_id:
        raise DataError(f"{what} belongs to run {manifest.run_id!r}, not to {run_id!r}: it is refused")
    if not hmac.compare_digest(manifest.signature.encode(), _signature(manifest, key).encode()):
        raise DataError(f"{what} of run {run_id!r}: the signature does not match; it was changed or signed elsewhere")
    _check_layout(manifest, what)
    if manifest.adapters is not None:
        verify(manifest.adapters.base, key, run_id)
        _check_adapters(manifest, manifest.adapters, what)


def encode(manifest: WeightManifest) -> bytes:
    """Msgpack bytes, the same for equal manifests."""
    return msgspec.msgpack.encode(manifest)


def decode(data: bytes) -> WeightManifest:
    """The manifest in `data`. Raises DataError when the bytes are anything else; it does not verify."""
    try:
        return msgspec.msgpack.decode(data, type=WeightManifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DataError(f"{len(data)} bytes are no weight manifest: {error}") from error


def _signature(manifest: WeightManifest, key: bytes) -> str:
    if len(key) < MIN_KEY_BYTES:
        raise ConfigError(f"a key of {len(key)} bytes cannot sign weights: give at least {MIN_KEY_BYTES} random bytes")
    unsigned = msgspec.structs.replace(manifest, signature="")
    return hmac.new(key, encode(unsigned), hashlib.sha256).hexdigest()


def _check_layout(manifest: WeightManifest, what: str) -> None:
    """A signed manifest can still come from a faulty publisher: names once, bytes inside and disjoint."""
    end = 0
    for entry in sorted(manifest.tensors, key=lambda entry: entry.offset):
        if entry.nbytes != entry_bytes(entry.dtype, entry.shape):
            raise DataError(f"{what}: {entry.name!r} is {entry.dtype} {entry.shape}, not {entry.nbytes} bytes")
        if entry.offset < end:
            raise DataError(f"{what}: {entry.name!r} at byte {entry.offset} overlaps the tensor before it")
        end = entry.offset + entry.nbytes
    if end > manifest.total_bytes:
        raise DataError(f"{what}: its tensors end at byte {end} of {manifest.total_bytes}")
    if len({entry.name for entry in manifest.tensors}) != len(manifest.tensors):
        raise DataError(f"{what}: a tensor name occurs twice")
    if combined_digest(manifest.tensors) != manifest.digest:
        raise DataError(f"{what}: its digest {manifest.digest} is not that of its {len(manifest.tensors)} tensors")


def _check_adapters(manifest: WeightManifest, adapters: AdapterFacts, what: str) -> None:
    """They fit their base, all of them: what a replica merges needs no further look."""
    base, rank = adapters.base, adapters.rank
    if base.version != base_version(manifest.version) or base.adapters is not None:
        raise DataError(f"{what}: its base is said to be version {base.version}, which is not that of its incarnation")
    if rank < 1 or not 0.0 < adapters.alpha < float("inf"):
        raise DataError(f"{what}: adapters of rank {rank} and alpha {adapters.alpha} are none")
    weights = {entry.name: entry.shape for entry in base.tensors}
    found = {entry.name: entry.shape for entry in manifest.tensors}
    for name in found:
        shape = weights.get(adapted_weight(name) or "", ())
        if len(shape) != 2:
            raise DataError(f"{what}: {name!r} changes no matrix of its base {base.version}")
        lora_a, lora_b = adapter_of(adapted_weight(name) or "")
        if (found.get(lora_a), found.get(lora_b)) != ((rank, shape[1]), (shape[0], rank)):
            raise DataError(f"{what}: the adapter of which {name!r} is a part is not one of rank {rank} for {shape}")


def entry_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor. Raises DataError for a format that weights cannot have or a negative extent."""
    if dtype not in ITEM_BYTES or any(extent < 0 for extent in shape):
        raise DataError(f"a tensor of {dtype} {shape} cannot be weights: formats are {', '.join(ITEM_BYTES)}")
    count = ITEM_BYTES[dtype]
    for extent in shape:
        count *= extent
    return count
