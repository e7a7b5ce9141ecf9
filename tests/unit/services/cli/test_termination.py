"""SIGTERM at any command."""

import subprocess
import sys

PROGRAM = """
import signal, sys
from streamrl.services.cli.termination import end_on_termination
end_on_termination()
try:
    print("ready", flush=True)
    signal.pause()
    print("went on", flush=True)
finally:
    print("let go", flush=True)
"""


def test_it_lets_go_what_it_holds_and_exits_with_143() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.communicate(timeout=60)[0] == "let go\n"
        assert process.returncode == 143


def test_one_that_is_ignored_stays_ignored() -> None:
    program = (
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "from streamrl.services.cli.termination import end_on_termination\nend_on_termination()\n"
        "print(signal.getsignal(signal.SIGTERM) is signal.SIG_IGN)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "True\n"
