"""`streamrl deploy`: writes the files with which a run is started elsewhere."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from streamrl.config import load_args
from streamrl.deploy.kit import kit
from streamrl.errors import ConfigError, ResourceError

_IMAGE = re.compile(r"[a-z0-9][a-z0-9./_-]*(:\d+/[a-z0-9./_-]+)?(:\w[\w.-]*)?(@sha256:[0-9a-f]{64})?")
"""Registry, name, tag or digest."""


def deploy(target: str, path: str, rest: tuple[str, ...], out: Path, *, image: str | None, force: bool) -> list[Path]:
    """Write the files of `target` into `out`, and return their paths. The folder is made when absent.

    Raises ConfigProblems for a configuration that cannot be deployed there, ConfigError for a folder that has other
    files in it and for what is no image, and ResourceError where it cannot be written. Nothing is written then.
    """
    if image is not None and not _IMAGE.fullmatch(image):
        raise ConfigError(f"--image {image!r} is no name of an image; give one as registry.example/streamrl:1")
    config = load_args(path, rest)
    # Compose takes a name without a dot at its head for a volume's.
    home = os.path.join(".", os.path.relpath(Path.cwd(), out))
    files = kit(target, config, image=image, home=home, files=os.path.relpath(out, Path.cwd()))
    if not force:
        _refuse_others(out, files)
    return _write(out, files)


def _refuse_others(out: Path, files: Mapping[str, str]) -> None:
    if not out.exists():
        return
    if not out.is_dir():
        raise ConfigError(f"{out} is a file; name a folder with --out")
    found = (file for file in sorted(out.rglob("*")) if not file.is_dir())
    others = [name for file in found if (name := str(file.relative_to(out))) not in files]
    there = {name: text.encode() for name, text in files.items() if (out / name).is_file()}
    changed = [name for name, text in there.items() if (out / name).read_bytes() != text]
    if others or changed:
        raise ConfigError(
            f"{out} holds {', '.join([*others, *changed][:3])}, which would not be what is written; name another "
            "folder with --out, or write into this one with --force"
        )


def _write(out: Path, files: Mapping[str, str]) -> list[Path]:
    try:
        for name, text in files.items():
            place = out / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ResourceError(f"{out} cannot be written: {error.strerror}; name another folder with --out") from error
    return [out / name for name in files]
