"""The tutorials as a reader follows them: the files that a page has, and the commands that it has typed."""

import os
import re
import subprocess
import sys
from pathlib import Path

from support.repository import ROOT
from support.runs.live_run import LIMIT_S, STREAMRL

TUTORIALS = ROOT / "docs" / "tutorials"
_FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)


class Tutorial:
    """One page, by its name."""

    def __init__(self, name: str) -> None:
        self.text = (TUTORIALS / f"{name}.md").read_text()
        self._fences = _FENCE.findall(self.text)

    def files(self) -> dict[str, str]:
        """What the page has the reader write, by file name."""
        return {title: text for language, title, text in self._fences if language != "sh"}

    def write(self, folder: Path) -> None:
        for name, text in self.files().items():
            (folder / name).write_text(text)

    def commands(self, machine: str | None = None) -> list[str]:
        """What is typed, a line each, in the order of the page. machine: where, if the page has several."""
        blocks = [text for language, title, text in self._fences if language == "sh" and title == (machine or "")]
        return [line for block in blocks for line in block.splitlines()]


def type_in(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    """Run one line in a shell in `folder` whose path has this Python and `streamrl`; both outputs are in `stdout`."""
    path = os.pathsep.join([str(STREAMRL.parent), str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
