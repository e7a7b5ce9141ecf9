"""Files that are something else than their name says, by how they begin. Pure."""

from streamrl.errors import ConfigError

_BEGINNINGS = (
    (b"\xff\xfe", "is UTF-16; save it as UTF-8"),
    (b"\xfe\xff", "is UTF-16; save it as UTF-8"),
    (b"\x1f\x8b", "is packed by gzip; end its name with .gz"),
    (b"BZh", "is packed by bzip2; end its name with .bz2"),
    (b"\x28\xb5\x2f\xfd", "is packed by zstd; end its name with .zst"),
    (b"\x04\x22\x4d\x18", "is packed by lz4; end its name with .lz4"),
    (b"\xfd7zXZ", "is packed by xz; end its name with .xz"),
    (b"PK\x03\x04", "is a zip archive or a spreadsheet; unpack it, or save it as CSV in UTF-8"),
    (b"PAR1", "is Parquet; end its name with .parquet"),
    (b"ARROW1", "is Arrow's format; end its name with .arrow"),
    (b"version https://git-lfs", "is a pointer of Git LFS; fetch the file itself with `git lfs pull`"),
)
_WEB_PAGES = (b"<!doctype", b"<html")
LONGEST_BEGINNING = max(len(beginning) for beginning, _ in _BEGINNINGS)


def refuse_foreign(name: str, head: bytes) -> None:
    """Raises ConfigError for a file of text, unpacked where its name says so, that begins as something else does.

    head: at least its first LONGEST_BEGINNING bytes, where it has as many."""
    for beginning, what in _BEGINNINGS:
        if head.startswith(beginning):
            raise ConfigError(f"data {name}: it {what}")
    if head.lower().startswith(_WEB_PAGES):
        raise ConfigError(f"data {name}: it is a web page; download the file that the page is about")
    if b"\x00" in head[:4]:
        raise ConfigError(f"data {name}: it is UTF-16 without a mark, or no text; save it as UTF-8")
