"""The conditions under which three steps of a run are started: what a machine, a shell or a neighbour may be like."""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

Wrap = Callable[[list[str]], list[str]]
SHELL = ["sh", "-c"]


def as_it_is(command: list[str]) -> list[str]:
    return command


def in_shell(words: str) -> Wrap:
    """`words` has "$@" where the command goes."""
    return lambda command: [*SHELL, words, "sh", *command]


def in_namespaces(flags: str, words: str = 'exec "$@"') -> Wrap:
    """In namespaces of its own, where `words` first makes a condition."""
    return lambda command: ["unshare", *flags.split(), *SHELL, words, "sh", *command]


@dataclass(frozen=True)
class Condition:
    """code: exit code of three steps. told: in the output. needs: programs and rights ("root") that make it."""

    wrap: Wrap = as_it_is
    environment: Mapping[str, str | None] = field(default_factory=dict)
    code: int = 0
    told: Sequence[str] = ()
    needs: Sequence[str] = ()
    folder: str = "user"

    def lacks(self) -> str:
        """What this machine has not, "" where it has all."""
        for name in self.needs:
            if name == "root" and os.geteuid() != 0:
                return "root"
            if name != "root" and shutil.which(name) is None:
                return name
        return ""


SHADOWED = """
for name in services buffers tests configs; do mkdir -p mine/$name && touch mine/$name/__init__.py; done
mv dense.py mine/services/scores.py
export PYTHONPATH=$PWD/mine
exec "$@"
"""
"""Before it: a user's folder. The command gets a path that begins with packages of his."""

NOWHERE = "http://127.0.0.1:9"
PROXIES = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), NOWHERE)
UNSHARE = ("unshare", "root")

CONDITIONS: Mapping[str, Condition] = {
    # what held
    "proxies are set": Condition(environment=PROXIES),
    "256 descriptors": Condition(in_shell('ulimit -n 256; exec "$@"')),
    "one core": Condition(lambda command: ["taskset", "-c", "0", *command], needs=["taskset"]),
    "64 threads are asked for": Condition(environment={"OMP_NUM_THREADS": "64", "MKL_NUM_THREADS": "64"}),
    "an empty environment": Condition(in_shell('exec env -i "$@"')),
    "no home": Condition(environment={"HOME": None, "XDG_CACHE_HOME": None}),
    "a home that is not there": Condition(environment={"HOME": "/nonexistent/home"}),
    "a locale that is not there": Condition(environment={"LC_ALL": "tr_TR.ISO-8859-9", "LANG": "xx_XX"}),
    "the locale C": Condition(environment={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
    "a long path with spaces": Condition(folder="a folder with spaces, äöü and a name of some length " + "x" * 60),
    "another Ray's variables": Condition(
        environment={"RAY_ADDRESS": "127.0.0.1:9", "RAY_NAMESPACE": "mine"}, told=["RAY_ADDRESS in the environment"]
    ),
    "no name resolution": Condition(
        in_namespaces(
            "--mount", 'mount --bind /dev/null /etc/resolv.conf; mount --bind /dev/null /etc/hosts; exec "$@"'
        ),
        needs=UNSHARE,
    ),
    # what is refused
    "2 MiB of /dev/shm": Condition(
        in_namespaces("--mount", 'mount -t tmpfs -o size=2m none /dev/shm; exec "$@"'),
        needs=UNSHARE,
        code=3,
        told=["/dev/shm"],
    ),
    "30 MB of disk": Condition(
        in_namespaces("--mount", 'mount -t tmpfs -o size=30m none runs; exec "$@"'),
        needs=UNSHARE,
        code=3,
        told=["free on the disk of"],
    ),
    "no loopback": Condition(
        in_namespaces("--net"), needs=UNSHARE, code=3, told=["127.0.0.1 does not answer", "ip link set lo up"]
    ),
    "64 descriptors": Condition(in_shell('ulimit -n 64; exec "$@"'), code=3, told=["may open 64 files", "ulimit -n"]),
    "files of 50 MB": Condition(in_shell('ulimit -f 100000; exec "$@"'), code=3, told=["ulimit -f"]),
    "processes of 1.2 GB": Condition(
        in_shell('ulimit -v 1200000; exec "$@"'),
        code=3,
        # Whether its processes had time to say why depends on which of them it hits, and when.
        told=["a local Ray did not start", "a process may map", "ulimit -v"],
    ),
    # what fell
    "the user has packages of our folders' names": Condition(
        lambda command: in_shell(SHADOWED)([*command, "--reward.function", "services.scores:reward"])
    ),
    "standard input is closed": Condition(in_shell('exec "$@" <&-')),
    "all descriptors but output are closed": Condition(in_shell('exec "$@" <&- 2>&-')),
    "output is closed": Condition(in_shell('exec "$@" >&-')),
    "nothing is open": Condition(in_shell('exec "$@" <&- >&- 2>&-')),
    "optimized Python": Condition(environment={"PYTHONOPTIMIZE": "2"}, told=["PYTHONOPTIMIZE does not reach"]),
    "warnings are errors": Condition(environment={"PYTHONWARNINGS": "error"}, told=["PYTHONWARNINGS does not reach"]),
    "Python's development mode": Condition(environment={"PYTHONDEVMODE": "1"}, told=["PYTHONDEVMODE does not reach"]),
    "no compiled kernels": Condition(environment={"NUMBA_DISABLE_JIT": "1"}, told=["NUMBA_DISABLE_JIT=1"]),
}
