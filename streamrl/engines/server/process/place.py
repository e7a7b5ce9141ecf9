"""Where a server is started from, and the Python that it runs under."""

from dataclasses import dataclass
from pathlib import Path

from streamrl.config import Config
from streamrl.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """start_folder: relative paths begin there. prefix: what the names of its folders in shared memory begin with."""

    start_folder: Path
    prefix: str


def engine_python(config: Config, start_folder: Path) -> Path:
    """The Python that the server runs under. Raises ConfigError when there is none."""
    engine, given = config.rollout.engine, config.rollout.server.python
    # Not resolved: the Python of an environment is a link, and knows its environment by its own place.
    python = start_folder / Path(given or f".venvs/{engine}/bin/python").expanduser()
    if not python.is_file():
        way_out = "name another, or leave the key out" if given else f"run `make engines`, which makes .venvs/{engine}"
        raise ConfigError(f'rollout.server.python: the engine "{engine}" needs {python}, and there is none; {way_out}')
    return python
