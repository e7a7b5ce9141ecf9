"""`streamrl convert`: reads files of another system, writes the configuration, and says what is not in it."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from streamrl.config.migration.migrate import File, Migrated, System, migrate, system_of
from streamrl.config.migration.table import LeftOut
from streamrl.errors import ConfigError, ResourceError

MOST_BYTES = 4 * 2**20


def convert_files(paths: Sequence[str], *, system: System | None, rows: int | None, devices: int) -> Migrated:
    """The configuration that the files come to. Raises ConfigError for what cannot be read, and where it is not said
    whose files they are; ConfigProblems for a file with nothing that is known."""
    for name, number in (("--rows", rows), ("--devices", devices)):
        if number is not None and number < 1:
            raise ConfigError(f"{name} {number}: at least 1")
    files = [File(path, _text(path)) for path in paths]
    found = system or system_of(files[0].name, files[0].text)
    if found is None:
        raise ConfigError(
            f"{files[0].name}: verl's are .yaml and .sh, TRL's .py, prime-rl's .toml; say whose it is with --system"
        )
    return migrate(found, files, rows=rows, devices=devices, is_folder=lambda path: Path(path).expanduser().is_dir())


def write(done: Migrated, out: Path, *, force: bool) -> None:
    """Write the configuration. Raises ConfigError where another file is there, ResourceError where it cannot be."""
    if out.is_dir():
        raise ConfigError(f"--out {out} is a folder; name a file")
    try:
        if not force and out.exists() and out.read_bytes() != done.text.encode():
            raise ConfigError(
                f"{out} is there and holds something else; name another file, or overwrite it with --force"
            )
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(done.text, encoding="utf-8")
    except OSError as error:
        raise ResourceError(f"{out} cannot be written: {error.strerror}; name another file with --out") from error


def report(done: Migrated) -> Iterator[str]:
    """What a person reads beside the configuration. Settings that are left out for one reason stand together."""
    yield f"{len(done.written)} keys written"
    for note in done.notes:
        yield f"to do: {note}"
    for problem in done.problems:
        yield f"`streamrl check` will say: {problem}"
    reasons: dict[str, list[LeftOut]] = {}
    for one in done.left:
        reasons.setdefault(one.reason, []).append(one)
    if reasons:
        yield f"{len(done.left)} settings left out:"
    for reason, settings in reasons.items():
        yield f"  {reason}"
        yield from (f"    {one}" for one in settings)


def facts(done: Migrated) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "system": done.system,
        "config": done.text,
        "written": {one.key: one.origin for one in done.written},
        "left": [
            {"name": one.name, "file": one.file, "line": one.line, "value": one.value, "reason": one.reason}
            for one in done.left
        ],
        "to_do": list(done.notes),
        "problems": list(done.problems),
    }


def _text(path: str) -> str:
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot read it: {error.strerror}") from error
    if len(content) > MOST_BYTES:
        raise ConfigError(f"{path} has {len(content)} bytes, and a file of settings at most {MOST_BYTES}")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}:{line}: not UTF-8 text") from error
