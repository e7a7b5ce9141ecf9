"""The commands about the data of a configuration. `main` makes them part of the command line."""

from pathlib import Path
from typing import Literal

from cyclopts import App

from streamrl.services.cli.options import Flag, Json, Rest

data = App(name="data", help="Look at the data of a configuration, and write published data sets as files.")


@data.command
def check(config: str, *rest: Rest, as_json: Json = False) -> int:
    """Read every row and say what there is: lengths, duplicates, leakage between train and eval, what is left out.

    Parameters
    ----------
    config
        A TOML file; overlays and keys follow as for `up`.
    """
    from streamrl.services.commands.data import check_data

    return check_data(config, rest, as_json)


@data.command
def show(config: str, *rest: Rest, row: int = 0, held_out: Flag = False, as_json: Json = False) -> int:
    """Show what the model gets of one prompt: the exact text and ids, special tokens visible, and the payload.

    Parameters
    ----------
    config
        A TOML file; overlays and keys follow as for `up`.
    row
        Number of the prompt, from 0, in the order of the files.
    held_out
        Of the prompts that are only scored.
    """
    from streamrl.services.commands.data import show_prompt

    return show_prompt(config, rest, row, held_out, as_json)


@data.command
def prepare(name: Literal["gsm8k", "math"], path: str, *, to: str) -> int:
    """Write a published data set as JSONL files with `question` and `answer`, for `data.train` and `data.eval`.

    Parameters
    ----------
    name
        Which data set it is.
    path
        Its files as they are published: a file, a folder, or hf:OWNER/NAME.
    to
        The folder to write: `train.jsonl` and `test.jsonl`.
    """
    from streamrl.services.commands.data import write_published

    return write_published(name, path, Path(to))
