"""The memory of a process and all that it started, read from /proc."""

import os
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")


def tree_memory(root: int, proc: Path = Path("/proc")) -> int:
    """Resident bytes of the process `root` and its descendants. Pages that several share count for each."""
    children = _children(proc)
    total, waiting = 0, [root]
    while waiting:
        process = waiting.pop()
        waiting += children[process]
        with suppress(OSError, IndexError, ValueError):  # it ended meanwhile
            total += int((proc / str(process) / "statm").read_text().split()[1]) * PAGE
    return total


def _children(proc: Path) -> "defaultdict[int, list[int]]":
    found = defaultdict[int, list[int]](list)
    for name in os.listdir(proc):
        if name.isdigit():
            with suppress(OSError, IndexError, ValueError):
                # Behind the name, which may hold anything, and its bracket: state, parent.
                parent = (proc / name / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
                found[int(parent)].append(int(name))
    return found
