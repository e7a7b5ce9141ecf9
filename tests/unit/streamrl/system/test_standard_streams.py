"""No descriptor of ours is a standard one, whichever of them a process was started without."""

import itertools
import subprocess
import sys

import pytest

CLOSED = [closed for count in range(4) for closed in itertools.combinations((0, 1, 2), count)]
PROGRAM = """
import os, sys
from streamrl.system.standard_streams import hold_standard_streams
hold_standard_streams()
opened = os.open(sys.argv[1], os.O_RDWR)
print("out"), print("err", file=sys.stderr), sys.stdin.read()
sys.stdout.flush(), sys.stderr.flush()
os.write(opened, str(opened).encode())
os.execv(sys.executable, [sys.executable, "-c", "import os; [os.fstat(number) for number in range(3)]"])
"""


@pytest.mark.parametrize("closed", CLOSED, ids=str)
def test_a_file_gets_a_number_above_the_standard_ones_and_what_is_printed_is_not_in_it(
    closed: tuple[int, ...], tmp_path
) -> None:
    file = tmp_path / "file"
    file.touch()
    words = " ".join(f"{number}>&-" for number in closed)
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {words}', "sh", sys.executable, "-c", PROGRAM, str(file)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert file.read_text() == "3"
    assert done.stdout == ("" if 1 in closed else "out\n")
    assert done.stderr == ("" if 2 in closed else "err\n")
