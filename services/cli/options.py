"""What the commands of the command line have in common: their options, their exit codes, how a run is found."""

import sys
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

if TYPE_CHECKING:
    from streamrl.services.run.folder import RunFolder

EXIT_FAILED: Final = 4

Rest = Annotated[str, Parameter(allow_leading_hyphen=True, show=False)]
Json = Annotated[bool, Parameter(name="--json", negative="")]
Flag = Annotated[bool, Parameter(negative="")]


def notice(line: str) -> None:
    """Print a line that is not the command's answer."""
    print(f"streamrl: {line}", file=sys.stderr)


def find(run: str | None) -> "RunFolder":
    """A run by its folder or its name, the newest when None. Raises RunFolderError."""
    # Here and not above: `--help` imports nothing beyond the parser.
    from streamrl.services.run.folder import find_run

    return find_run(run)
