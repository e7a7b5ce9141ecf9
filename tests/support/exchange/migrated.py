"""Files of other systems, converted."""

import tomllib
from pathlib import Path
from typing import Any

from support.repository import ROOT

from streamrl.config.migration.migrate import File, Migrated, migrate, system_of

SAMPLES = ROOT / "tests/unit/streamrl/config/migration/samples"


def migrated(*names: str, **options: Any) -> Migrated:
    """Of samples, by their names."""
    files = [File(name, (SAMPLES / name).read_text()) for name in names]
    system = system_of(names[0], files[0].text)
    assert system is not None
    return migrate(system, files, **options)


def values(done: Migrated) -> dict[str, Any]:
    """The configuration as TOML has it."""
    return tomllib.loads(done.text)


def left(done: Migrated) -> set[str]:
    return {one.name for one in done.left}


def reason(done: Migrated, name: str) -> str:
    """Why a setting is left out; "" when it is not."""
    return next((one.reason for one in done.left if one.name == name), "")


def write_sample(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_text((SAMPLES / name).read_text())
    return path
