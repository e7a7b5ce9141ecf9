"""Runs pytest, and what failed once more, alone: `once_more.py ARGUMENT...` in the place of `pytest ARGUMENT...`.

A test that fails and then passes is unsteady. It is told by name, with the output of both runs above, and its name is
added to the file that UNSTEADY names, which the parts of one run share. Where a file could not be collected, no test
has run, so all of it is run once more. The exit code is pytest's own; it is 1 where a test fails twice, and where more
than `MOST` tests of all parts are unsteady.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

MOST = 3
"""Unsteady tests that a run may have: of thousands on a busy machine, one that is late is no news of the change."""
FAILED = 1
"""What pytest exits with where tests ran and some failed. Any other code is none of a test's."""


def run_once_more(arguments: Sequence[str], noted: Path) -> int:
    """The exit code. noted: names of unsteady tests of the parts before, one a line; there may be no file yet."""
    with tempfile.TemporaryDirectory() as folder:
        # A cache of its own: what failed in another run is not to be run here.
        kept = [*arguments, "-o", f"cache_dir={folder}"]
        code = _pytest(kept)
        failed = _failed(Path(folder)) if code == FAILED else []
        if not failed:
            return code
        if len(failed) > MOST:
            print(f"{len(failed)} tests failed, more than {MOST}: none is run once more", flush=True)
            return code
        if again := _pytest([*kept, *_narrowed(failed, "-n" in arguments)]):
            return again
    return _note(failed, noted)


def _narrowed(failed: Sequence[str], in_workers: bool) -> list[str]:
    """Further arguments of the second run."""
    if any("::" not in name for name in failed):
        print(f"once more, all of it, since not every test was found: {', '.join(failed)}", flush=True)
        return []
    print(f"once more, alone: {', '.join(failed)}", flush=True)
    return [*(["-n", "0"] if in_workers else []), "--last-failed", "--last-failed-no-failures=none", "-rA"]


def _pytest(arguments: Sequence[str]) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode


def _failed(cache: Path) -> list[str]:
    path = cache / "v/cache/lastfailed"
    return sorted(json.loads(path.read_text())) if path.exists() else []


def _note(names: Sequence[str], noted: Path) -> int:
    for name in names:
        print(f"unsteady here, by name: {name} failed, and passed the second time", flush=True)
    before = noted.read_text().splitlines() if noted.exists() else []
    noted.write_text("".join(f"{name}\n" for name in (*before, *names)))
    if len(before) + len(names) <= MOST:
        return 0
    print(f"{len(before) + len(names)} tests of this run are unsteady, more than {MOST}", flush=True)
    return FAILED


if __name__ == "__main__":
    sys.exit(run_once_more(sys.argv[1:], Path(os.environ["UNSTEADY"])))
