"""A published version on its way into a file: checked while it comes, and under its name only when it is whole."""

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from streamrl.errors import ConfigError, ResourceError
from streamrl.types import Version
from streamrl.weights.safetensors_form import IncomingVersion

PIECE_BYTES = 2**20
"""That are checked and written at once."""


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """A downloaded version.

    Attributes:
        path: The safetensors file. Its tensors are named as in the Hugging Face export, or as peft names adapters.
        version: The version of the weights.
        digest: Equal for equal weights, in any run.
        num_bytes: The size of the file.
        adapters: The keys of peft's `LoraConfig` for LoRA weights. None for full weights.
    """

    path: Path
    version: Version
    digest: str
    num_bytes: int
    adapters: dict[str, Any] | None = None


class WeightsFile:
    """One download into `path`, whose folder exists. What was there stays until the new one is whole.

    Example:
        file = WeightsFile(path)
        try:
            for piece in pieces:
                file.add(piece)
            weights = file.keep()
        finally:
            file.close()
    """

    def __init__(self, path: Path) -> None:
        """Raises ConfigError for a place where nothing can be written."""
        self._path = path
        self._part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        self._incoming = IncomingVersion()
        self._num_bytes = 0
        # Without a buffer: what a full disk did not take is told where it is written, and not once more at the close.
        self._file: Any = self._checked_write(lambda: self._part.open("wb", buffering=0))

    def add(self, piece: bytes) -> None:
        """Raises DataError for bytes that are not the version's, ResourceError when the disk is full."""
        self._incoming.add(piece)
        left = memoryview(piece)
        while left:
            left = left[self._checked_write(partial(self._file.write, left)) :]
        self._num_bytes += len(piece)

    def keep(self) -> Weights:
        """All has come: it has its name from now on. Raises as `add`, also when something is missing."""
        self._incoming.finish()
        self._checked_write(self._put)
        return Weights(
            path=self._path,
            version=self._incoming.version,
            digest=self._incoming.digest,
            num_bytes=self._num_bytes,
            adapters=self._incoming.adapters,
        )

    def close(self) -> None:
        """Leave nothing that is not whole."""
        self._file.close()
        self._part.unlink(missing_ok=True)

    def _put(self) -> None:
        os.fsync(self._file.fileno())
        self._part.replace(self._path)

    def _checked_write(self, write: Callable[[], Any]) -> Any:
        try:
            return write()
        except (PermissionError, FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise ConfigError(
                f"cannot write {self._path}: {error.strerror}; name a file in a folder of yours"
            ) from error
        except OSError as error:
            raise ResourceError(f"cannot write {self._path}: {error.strerror}; free some space") from error


async def downloaded(pieces: AsyncIterator[bytes], path: Path) -> Weights:
    """All pieces of a version, in a file of that path. Raises as `WeightsFile`."""
    file = await asyncio.to_thread(WeightsFile, path)
    try:
        async for piece in pieces:
            await asyncio.to_thread(file.add, piece)
        return await asyncio.to_thread(file.keep)
    finally:
        await asyncio.to_thread(file.close)
