"""A level is tried out before anything runs on it: a program tries what it must not be able to."""

import json
from collections.abc import Callable
from typing import Final

from streamrl.errors import ComponentError
from streamrl.sandbox.limits import program_environment
from streamrl.sandbox.program import Finished, Limits, Program

_LIMITS: Final = Limits(time_s=20.0, processes=8, memory_bytes=256 * 2**20, disk_bytes=2**20)
_SOURCE: Final = """
import json, os, resource, socket, threading
held = {}

def tries(name, action):
    try:
        action()
    except (OSError, RuntimeError, MemoryError):
        held[name] = True
    else:
        held[name] = False

def connect():
    # A refusal is an answer of this machine's network.
    try:
        with socket.socket() as one:
            one.connect(("127.0.0.1", 9))
    except ConnectionRefusedError:
        return

def threads():
    done = threading.Event()
    try:
        for _ in range(64):
            threading.Thread(target=done.wait).start()
    finally:
        done.set()

def write(path, size=1):
    with open(path, "wb") as file:
        file.write(bytes(size))

tries("network", connect)
tries("processes", threads)
tries("memory", lambda: bytearray(2**30))
tries("disk", lambda: write("big", 2**22))
tries("files", lambda: open("/etc/passwd").close())
tries("programs", lambda: write("/usr/new"))
tries("root", lambda: write("/new"))
tries("namespaces", lambda: os.chroot("/tmp"))
tries("users", lambda: os.setuid(0))
held["others"] = not os.path.exists("/proc/1") or len([one for one in os.listdir("/proc") if one.isdigit()]) <= 4
held["variables"] = not set(os.environ) - {NAMES}
print(json.dumps(held))
"""


def why_not(run: Callable[[Program, Limits], Finished]) -> str:
    """Why a level does not hold, or ""."""
    names = {*program_environment(), "PWD", "SHLVL", "_", "LC_CTYPE"}
    try:
        finished = run(Program(source=_SOURCE.replace("{NAMES}", repr(names))), _LIMITS)
    except ComponentError as error:
        return str(error).removeprefix("sandbox: ")
    try:
        held: dict[str, bool] = json.loads(finished.stdout)
    except ValueError:
        told = finished.stderr.decode(errors="replace").strip().splitlines()
        return f"its first program ended with {finished.in_words(_LIMITS)}{': ' + told[-1] if told else ''}"
    broken = [name for name, one in held.items() if not one]
    return f"it does not hold: {', '.join(broken)}" if broken else ""
