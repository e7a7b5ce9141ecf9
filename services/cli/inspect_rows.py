"""The commands that look at the rows of a run: its queue, and queries. `main` makes commands of them."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from streamrl.errors import ConfigError
from streamrl.services.cli.options import EXIT_FAILED, Flag, Json, find, notice


def queue(run: str | None = None, *, verify: Flag = False, as_json: Json = False) -> int:
    """Say how a run's replay queue stands, or check every byte of it.

    Parameters
    ----------
    run
        A run folder, or a name under `runs/`; the newest when absent.
    verify
        Check every checksum of segments, indexes, ledger and checkpoints instead; exit code 4 for damage.
    """
    found = find(run)
    if verify:
        from streamrl.services.inspect.verify import show as show_verdict

        return EXIT_FAILED if show_verdict(found, as_json=as_json) else 0
    from streamrl.services.inspect.queue import show

    show(found, as_json=as_json)
    return 0


def sql(
    *words: Annotated[str, Parameter(name="[RUN] QUERY", show_default=False)],
    file: str | None = None,
    csv: Flag = False,
    as_json: Json = False,
) -> int:
    """Query a run's rows with DuckDB (the extra `sql`).

    The tables are completions, scores, rollouts, ledger and steps.

    Parameters
    ----------
    words
        A run folder, or a name under `runs/` (the newest run when absent), then the query.
    file
        Read the query from this file.
    csv
        Print comma-separated values.
    as_json
        Print a list of objects as JSON.
    """
    from streamrl.services.inspect.sql_output import show

    name, query = _run_and_query(words, file)
    show(find(name), query, "json" if as_json else "csv" if csv else "text", notice)
    return 0


def _run_and_query(words: tuple[str, ...], file: str | None) -> tuple[str | None, str]:
    """The run, None for the newest, and the query. Raises ConfigError."""
    given = list(words)
    if file is not None:
        try:
            given.append(Path(file).read_text())
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the query in {file}: {error}") from error
    if len(given) not in (1, 2):
        raise ConfigError(f"give one query in quotes or by --file, after the run if it is not the newest: got {given}")
    return (given[0] if len(given) == 2 else None), given[-1]
