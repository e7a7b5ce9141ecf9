"""Objects in a store that fsspec knows, by the package of its scheme.

Guarantees: what a package raises is one of our errors, without a secret. Where the store can, an object is there whole
or not at all: a large one goes up in parts, and is made of them at the end. A put that failed is given up, so that its
parts do not become an object when the interpreter cleans up. Listings are asked anew each time.
"""

import contextlib
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final

import fsspec
from fsspec.spec import AbstractBufferedFile

from streamrl.errors import ConfigError, StreamRLError
from streamrl.storage.address import PACKAGES, scheme_of
from streamrl.storage.refusals import refusal
from streamrl.storage.store import PIECE_BYTES, Buffer, MissingObjectError

PART_BYTES: Final = 2 * PIECE_BYTES
"""Of a part of a large object: a store takes some thousand parts, each of some MiB at least."""


class FsspecStore:
    """See the module. Made once for an address; one thread uses it. Raises ConfigError without the package."""

    def __init__(self, address: str) -> None:
        self.address = address
        try:
            self._fs, root = fsspec.core.url_to_fs(address)
        except (ImportError, ValueError) as error:
            raise ConfigError(_not_known(address, error)) from error
        except Exception as error:
            raise refusal(error, f"opening {address}") from error
        self._root = str(root).rstrip("/")

    def put(self, key: str, pieces: Iterable[Buffer]) -> None:
        with self._explained(f"writing {self._told(key)}"):
            begun, rest = bytearray(), iter(pieces)
            for piece in rest:
                begun += piece
                if len(begun) > PART_BYTES:
                    self._put_in_parts(key, begun, rest)
                    return
            # In one request, which no store shows half.
            self._fs.pipe_file(self._path(key), bytes(begun))

    def _put_in_parts(self, key: str, begun: bytearray, rest: Iterator[Buffer]) -> None:
        # Committed by a call of its own: an error in between leaves nothing, where the package can do that.
        file = self._fs.open(self._path(key), "wb", block_size=PART_BYTES, autocommit=False)
        try:
            file.write(begun)
            for piece in rest:
                file.write(piece)
            file.close()
            file.commit()
        except BaseException:
            _give_up(file)
            raise

    def get(self, key: str) -> Iterator[bytes]:
        path, what = self._path(key), f"reading {self._told(key)}"
        with self._explained(what, key), self._fs.open(path, "rb", block_size=PIECE_BYTES) as file:
            while piece := file.read(PIECE_BYTES):
                yield piece

    def size(self, key: str) -> int | None:
        self._fs.invalidate_cache()
        try:
            with self._explained(f"looking at {self._told(key)}", key):
                found = self._fs.info(self._path(key))
        except MissingObjectError:
            return None
        return None if found.get("type") == "directory" else int(found["size"])

    def list(self, prefix: str) -> dict[str, int]:
        self._fs.invalidate_cache()
        with self._explained(f"listing {self.address}"):
            found: dict[str, dict[str, Any]] = self._fs.find(self._path(prefix).rstrip("/"), detail=True)
        begin = len(self._path(""))
        sizes = {path[begin:]: int(entry["size"] or 0) for path, entry in found.items()}
        return {key: size for key, size in sizes.items() if key and key.startswith(prefix)}

    def remove(self, keys: Collection[str]) -> None:
        for key in keys:
            with contextlib.suppress(MissingObjectError), self._explained(f"removing {self._told(key)}", key):
                self._fs.rm_file(self._path(key))

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    def _told(self, key: str) -> str:
        return f"{self.address.rstrip('/')}/{key}"

    @contextlib.contextmanager
    def _explained(self, what: str, key: str = "") -> Iterator[None]:
        """key: of an object that may be missing."""
        try:
            yield
        except (StreamRLError, GeneratorExit):
            raise
        except Exception as error:
            told = refusal(error, what)
            if key and isinstance(error, FileNotFoundError) and "bucket" not in str(error).lower():
                raise MissingObjectError(f"{self._told(key)} is not there") from error
            raise told from error


def _give_up(file: Any) -> None:
    """Have the store forget what was sent of an object. It may not be able to, or not be there any more."""
    if isinstance(file, AbstractBufferedFile):
        with contextlib.suppress(Exception):
            file.discard()
        # Else it would be finished when it is collected.
        file.closed = True
        return
    with contextlib.suppress(Exception):
        file.close()


def _not_known(address: str, error: Exception) -> str:
    scheme = scheme_of(address)
    if isinstance(error, ImportError):
        package = PACKAGES.get(scheme)
        install = f"`pip install 'streamrl[{package.extra}]'`" if package else f"the package that it needs ({error})"
        return f"{address}: {scheme}:// needs a package that is not installed; install {install}"
    known = ", ".join(sorted(PACKAGES))
    return f"{address}: fsspec knows no scheme {scheme!r}; known are {known}, file, and those of fsspec's own list"
