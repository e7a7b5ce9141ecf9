"""Calls a function of a solution with given arguments, and prints what it returned: it does not know what is expected.

Run beside solution.txt, with `[NAME, [ARGUMENTS, ...]]` as JSON on standard input. It prints a line of
JSON for each call: [true, value] or [false, why]. What the solution prints itself goes to standard error.
"""

import json
import sys
from typing import Any

MOST_TEXT = 500


def main() -> None:
    report, sys.stdout = sys.stdout, sys.stderr
    name, calls = json.load(sys.stdin)
    with open("solution.txt", encoding="utf-8", errors="surrogatepass") as file:
        source = file.read()
    space: dict[str, Any] = {"__name__": "solution"}
    try:
        exec(compile(source, "solution.py", "exec"), space)
        function = _function(space, name)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the solution does
        why, calls_left = f"{type(error).__name__}: {error}"[:MOST_TEXT], len(calls)
        report.write(f"{json.dumps([False, why])}\n" * calls_left)
        return
    for given in calls:
        try:
            line = json.dumps([True, function(*given)])
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the same
            line = json.dumps([False, f"{type(error).__name__}: {error}"[:MOST_TEXT]])
        report.write(line + "\n")
        report.flush()


def _function(space: dict[str, Any], name: str) -> Any:
    """A function, or a method of the class `Solution`, as contests have it."""
    if name in space:
        return space[name]
    if "Solution" in space:
        return getattr(space["Solution"](), name)
    raise NameError(f"the solution has no function {name!r}")


if __name__ == "__main__":
    main()
