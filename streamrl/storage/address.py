"""Addresses of places: a folder of this machine, or a store by the name that fsspec has for it. Pure.

    /data/run    file:///data/run    s3://bucket/prefix    gs://bucket/prefix    az://container/prefix    memory://x

An address holds no credentials and no options: those are in the environment, where the packages look for them.
"""

import re
from pathlib import Path
from typing import Final, NamedTuple


class Package(NamedTuple):
    """What a scheme needs beside fsspec. extra: of streamrl, that installs it."""

    module: str
    extra: str


PACKAGES: Final = {
    "s3": Package("s3fs", "s3"),
    "s3a": Package("s3fs", "s3"),
    "gs": Package("gcsfs", "gcs"),
    "gcs": Package("gcsfs", "gcs"),
    "az": Package("adlfs", "azure"),
    "abfs": Package("adlfs", "azure"),
    "abfss": Package("adlfs", "azure"),
}
LOCAL: Final = ("file", "local")
MEMORY: Final = "memory"
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def scheme_of(address: str) -> str:
    """In lower case; "" for a path.

    Example:
        >>> scheme_of("s3://bucket/runs"), scheme_of("/data/runs")
        ('s3', '')
    """
    found = _SCHEME.match(address)
    return found[1].lower() if found else ""


def has_scheme(address: str) -> bool:
    return bool(scheme_of(address))


def local_path(address: str) -> Path | None:
    """The folder of this machine that an address names; None for one of a store."""
    scheme = scheme_of(address)
    if not scheme:
        return Path(address).expanduser()
    return Path(address.partition("://")[2]) if scheme in LOCAL else None


def join(address: str, *names: str) -> str:
    """The address of what lies below.

    Example:
        >>> join("s3://bucket/runs/", "first", "export")
        's3://bucket/runs/first/export'
    """
    below = "/".join(names)
    return f"{address}{below}" if address.endswith("://") else f"{address.rstrip('/')}/{below}"


def fault_of(address: str) -> str:
    """What is wrong with the form of an address, with the way out; "" where nothing is. Whether the store is there, and
    its package, is not asked."""
    scheme, _, rest = address.partition("://")
    if not address.strip():
        return "an empty address; give a folder, or one such as s3://bucket/prefix"
    if "://" not in address:
        return ""
    if "::" in address:
        return "a chain of file systems; give the address of one"
    if not has_scheme(address):
        return f"{address!r} begins with no scheme; give one such as s3://bucket/prefix"
    if "?" in rest or "#" in rest:
        return "an address with options behind ? or #; endpoints, tokens and keys go into the environment"
    place = rest.partition("/")[0]
    if ":" in place.partition("@")[0] and "@" in place:
        return "credentials in an address; put them into the environment, where the store's package looks for them"
    if scheme.lower() in LOCAL:
        return "" if rest.startswith("/") else f"{address!r} is no absolute path; write file:///folder"
    if scheme.lower() != MEMORY and not place:
        return f"{address!r} names no bucket; write {scheme}://BUCKET/PREFIX"
    if ".." in rest.split("/"):
        return "a way up (..) means nothing in a store; give the address itself"
    return ""
