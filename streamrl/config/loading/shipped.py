"""Configurations that come with streamrl, found by name: `streamrl up quickstart`."""

from pathlib import Path

FOLDER = Path(__file__).parents[2] / "configs"


def shipped_names() -> list[str]:
    """Of all of them."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def find_configuration(file: str) -> Path:
    """The file itself, where there is one or `file` is a path; else that which comes under this name."""
    path = Path(file)
    is_name = path.name == file and not path.suffix
    return FOLDER / f"{file}.toml" if is_name and not path.is_file() and file in shipped_names() else path


def unknown_name(file: str) -> str:
    """What to say of a file that is not there: the names that there are, where it may be meant as one."""
    if Path(file).name != file or Path(file).suffix:
        return ""
    return f"; by name there are {', '.join(shipped_names())}"
