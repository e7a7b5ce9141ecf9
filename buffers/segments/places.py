"""On which node of a run a file lies: its path, relative to the run folder, says so.

What the run's own node writes lies where it always did. What another node writes lies below `nodes/<node>/`, in that
node's folder and, once it was fetched, under the same name in the folder of whoever reads it. So a path names the same
bytes on every node, and a reference to a frame needs no field more. Nothing here knows which node is up.
"""

import re
from pathlib import Path
from typing import Final

from streamrl.errors import DataError

HOME: Final = ""
"""The node that `streamrl up` was called on: the run folder itself."""
NODES_DIR: Final = "nodes"
LEDGER_DIR: Final = "queue/ledger"
"""Of the run's own node alone."""
COMPLETIONS_DIR: Final = "queue/completions"
SCORES_DIR: Final = "queue/scores"
"""Both of a node, in its folder."""
PARTIALS_DIR: Final = "queue/partials"
"""The journals of a node, in its folder."""
SPARE_DIR: Final = "queue/spare"
"""Log files of a node that are kept to be written over, in its folder."""
_NODE = re.compile(r"[0-9a-f]{12}")
SEGMENT_NAME: Final = re.compile(r"(?P<writer>.+)-(?P<epoch>[0-9]+)-(?P<number>[0-9]+)\.arrow")
"""Of a file of a segment."""


def on_node(node: str, relative: str) -> str:
    """The path, relative to the run folder, of what lies at `relative` on a node."""
    return relative if node == HOME else f"{NODES_DIR}/{node}/{relative}"


def node_of(path: str) -> str:
    """The node that wrote the file at a path.

    Raises:
        DataError: the path begins as another node's, and names none.
    """
    first, _, rest = path.partition("/")
    if first != NODES_DIR:
        return HOME
    node = rest.partition("/")[0]
    if not _NODE.fullmatch(node):
        raise DataError(f"{path!r} names no node: 12 hex digits are expected after {NODES_DIR}/")
    return node


def writer_of(path: str) -> str:
    """Who wrote the segment at a path.

    Raises:
        DataError: it is no path of a segment.
    """
    name = SEGMENT_NAME.fullmatch(path.rpartition("/")[2])
    if name is None:
        raise DataError(f"{path!r} is no segment: its name should be <writer>-<epoch>-<n>.arrow")
    return name["writer"]


def resolve(run_folder: Path, path: str) -> Path:
    """The file at a path, with links followed.

    Raises:
        DataError: it leads out of the run folder.
    """
    resolved = (run_folder / path).resolve() if "\0" not in path else Path("/")
    if not resolved.is_relative_to(run_folder.resolve()):
        raise DataError(f"segment path {path!r} leads out of the run folder {run_folder}")
    return resolved
