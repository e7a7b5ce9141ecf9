"""`streamrl export` and `streamrl convert`. `main` makes commands of them."""

import json
import sys
from pathlib import Path
from typing import Literal

from streamrl.errors import ConfigError
from streamrl.services.cli.options import Flag, Json, find, notice
from streamrl.services.commands.printed import print_facts


def export(
    run: str | None = None,
    *,
    to: str | None = None,
    format: Literal["hf", "peft"] = "hf",
    push: str | None = None,
    private: Flag = False,
    dry_run: Flag = False,
    as_json: Json = False,
) -> int:
    """Write the newest checkpoint as a Hugging Face model folder with a model card, and push it to the hub.

    Parameters
    ----------
    run
        A run folder, or a name under `runs/`; the newest when absent.
    to
        The folder to write, or an address such as `s3://bucket/models/mine`; `export/` in the run folder when absent,
        `adapters/` for the format peft.
    format
        hf is the whole model, adapters merged; peft the adapters alone, as peft loads them (`learner.lora`).
    push
        Push the folder to this repository of the Hugging Face hub, OWNER/NAME, with the token of HF_TOKEN or of
        `hf auth login`. It is made when it is not there.
    private
        Make the repository, if it is made, for its owner alone.
    dry_run
        Write the folder and say what would be pushed.
    """
    if push is None and (private or dry_run):
        raise ConfigError("--private and --dry-run are of a push; give --push OWNER/NAME")
    found = find(run)
    place = to or str(found.export_path if format == "hf" else found.adapters_path)
    # Behind the search: this one takes seconds to import.
    from streamrl.services.commands.exchange import hub

    if push is None:
        print_facts(hub.export(found, place, format), as_json)
        return 0
    tell = (lambda _: None) if as_json else notice
    print_facts(hub.push(found, place, format, push, private=private, dry_run=dry_run, tell=tell), as_json)
    return 0


def convert(
    *files: str,
    out: str | None = None,
    system: Literal["verl", "trl", "prime"] | None = None,
    rows: int | None = None,
    devices: int = 1,
    force: Flag = False,
    as_json: Json = False,
) -> int:
    """Make a configuration of another system's files, and list what has no equal. Nothing of them is run.

    Parameters
    ----------
    files
        verl's YAML files or shell scripts with its overrides, one TRL script, or prime-rl's TOML files.
    out
        The file to write; standard output when absent, and the list then goes to standard error.
    system
        Whose files they are, where their names do not say it.
    rows
        Rows of the training data, by which epochs become steps.
    devices
        GPUs that a TRL script is started with.
    force
        Write over another file at `out`.
    """
    from streamrl.services.commands.exchange import convert as conversion

    if not files:
        raise ConfigError("give a file to convert: verl's YAML or shell script, a TRL script, prime-rl's TOML")
    done = conversion.convert_files(files, system=system, rows=rows, devices=devices)
    if out is not None:
        conversion.write(done, Path(out), force=force)
    if as_json:
        print(json.dumps(conversion.facts(done)))
        return 0
    if out is None:
        print(done.text, end="")
    lines = list(conversion.report(done))
    print(*lines, sep="\n", file=sys.stdout if out is not None else sys.stderr)
    if out is not None:
        print(f"{out}: see it with `streamrl check {out}`")
    return 0
