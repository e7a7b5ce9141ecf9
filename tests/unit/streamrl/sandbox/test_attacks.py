"""Programs that want out: each is contained by each level that this machine has, and none is scored."""

import asyncio
import json
import os
import secrets
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.sandbox.attacks import ATTACKS, program

from streamrl.config.schema.run import RewardModelConfig
from streamrl.config.schema.sandbox import SandboxConfig
from streamrl.rewards.base import RewardItem
from streamrl.rewards.build import make_scorer
from streamrl.sandbox.program import Ending, Limits, Program
from streamrl.sandbox.sandbox import Sandbox

MEMORY = 192 * 2**20
LIMITS = {"time_s": 1.0, "memory_bytes": MEMORY, "output_bytes": 2**16, "disk_bytes": 2**22, "processes": 16}
ENDED = {
    "memory in many processes": {Ending.MEMORY},
    "output without end": {Ending.OUTPUT},
    "errors without end": {Ending.OUTPUT},
    "time without end": {Ending.TIME},
    "sleep without end": {Ending.TIME},
    # As the first process of bubblewrap it cannot be stopped.
    "stop itself": {Ending.TIME, Ending.EXITED},
}
SYSTEM_PYTHON = "/usr/bin/python3"


def levels() -> list[object]:
    """bubblewrap gives up the rights of root, and then cannot read a Python that only root can read."""
    missing = shutil.which("bwrap") is None or not Path(SYSTEM_PYTHON).exists()
    why = pytest.mark.skipif(missing, reason=f"bubblewrap or {SYSTEM_PYTHON} is not installed")
    return ["namespaces", pytest.param("bubblewrap", marks=why)]


PATIENT = {**LIMITS, "time_s": 30.0}
"""Of what is to come to its end on a busy machine, too."""


def config(level: str, limits: Mapping[str, Any] = LIMITS) -> SandboxConfig:
    python = SYSTEM_PYTHON if level == "bubblewrap" else None
    return SandboxConfig(level=level, python=python, **limits)


@pytest.fixture(scope="module", params=levels())
def level(request: pytest.FixtureRequest) -> str:
    return request.param


class Machine:
    """What an attack would find: a secret, a server, shared memory."""

    def __init__(self, folder: Path) -> None:
        self.secret = folder / "secret"
        self.secret.write_text("a secret of the user's")
        self.secret.chmod(0o644)
        for one in (folder, *folder.parents):
            if one.owner() == "root" and one != Path("/"):
                one.chmod(one.stat().st_mode | 0o055)
        self.server = socket.create_server(("127.0.0.1", 0))
        # By its file: Python would keep a process that watches over it.
        self.memory = Path(f"/dev/shm/{secrets.token_hex(8)}")
        self.memory.write_bytes(bytes(16))
        self.abstract = socket.socket(socket.AF_UNIX)
        self.abstract.bind(f"\0{self.memory.name}")
        self.abstract.listen()
        self.places = {
            "secret": str(self.secret),
            "port": self.server.getsockname()[1],
            "parent": os.getpid(),
            "shm": self.memory.name,
        }

    def close(self) -> None:
        self.server.close()
        self.abstract.close()
        self.memory.unlink(missing_ok=True)  # where nothing holds it, an attack's Python removes it at its end


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SECRET", "SECRET")
        made = Machine(tmp_path_factory.mktemp("machine"))
        yield made
        made.close()


@pytest.fixture(scope="module")
def sandbox(level: str, machine: Machine) -> Iterator[Sandbox]:
    made = Sandbox(config(level))
    assert made.start() == level
    yield made
    made.close()


def test_there_are_enough_of_them() -> None:
    assert len(ATTACKS) >= 60


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_contained(attack: str, sandbox: Sandbox, machine: Machine) -> None:
    endings = ENDED.get(attack, {Ending.EXITED, Ending.MEMORY, Ending.TIME})
    limits = Limits(**(LIMITS if Ending.TIME in endings else PATIENT))
    finished = asyncio.run(sandbox.run(Program(source=program(attack, **machine.places)), limits))
    assert b"ESCAPED" not in finished.stdout, finished.stderr.decode()
    assert finished.ending in endings
    assert len(finished.stdout) + len(finished.stderr) <= 2 * limits.output_bytes
    assert finished.wall_s < limits.time_s + 3.0
    # The machine goes on, and the next program finds nothing of the one before.
    assert seen_by_the_next(sandbox) == b"['main.py']\n"
    assert left_behind() == []


def seen_by_the_next(sandbox: Sandbox) -> bytes:
    """A busy machine may take all of its second away: then by the one behind it."""
    for _ in range(20):
        after = asyncio.run(sandbox.run(Program(source="import os; print(os.listdir('.'))")))
        if after.ending is not Ending.TIME:
            return after.stdout
    raise AssertionError("no program came to its end in its second")


async def _unconfined(source: str, folder: Path) -> bytes:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", source), cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    return (await process.communicate())[0]


@pytest.mark.parametrize("every_form", [False, pytest.param(True, marks=pytest.mark.long)])
def test_no_attack_is_scored(every_form: bool, machine: Machine) -> None:
    """Whatever form the tests have; the short test gives each attack one. Who compares is outside of each level."""
    tests = [
        [{"input": "1", "output": "42"}],
        {"inputs": [[1]], "outputs": [42], "fn_name": "answer"},
        ["assert answer(1) == 42"],
        ["assert abs(answer(1) - 42) < 1e-6"],
        ["assert answer(1) in (42, 43)"],
        ["import unittest\nclass Test(unittest.TestCase):\n    def test(self): self.assertEqual(answer(1), 42)"],
    ]
    slow = {"time without end", "sleep without end", "stop itself", "fork and go away"}
    attacks = [attack for attack in ATTACKS if attack not in slow]
    tried = [
        (attack, test)
        for place, attack in enumerate(attacks)
        for number, test in enumerate(tests)
        if every_form or number == place % len(tests)
    ]
    scores = scores_of([_item(program(attack, **machine.places), test) for attack, test in tried], LIMITS)
    assert [attack for (attack, _), score in zip(tried, scores, strict=True) if score != 0.0] == []
    right = "def answer(number): return 42\nif __name__ == '__main__': print(42)"
    assert scores_of([_item(right, test) for test in tests], PATIENT) == [1.0] * len(tests)


def scores_of(items: list[RewardItem], limits: Mapping[str, Any]) -> list[float | None]:
    scorer = make_scorer("code", RewardModelConfig(), config("namespaces", limits))
    scores = [one.reward for one in scorer.score(items)]
    scorer.close()
    return scores


def _item(program: str, tests: object) -> RewardItem:
    payload = json.dumps({"tests": tests})
    return RewardItem(prompt="", completion=program, finish_reason="stop", payload=payload)


def test_memory_of_all_processes_together_stays_near_its_limit(sandbox: Sandbox, machine: Machine) -> None:
    before = psutil.virtual_memory().available
    least = before
    done = False

    async def watch() -> None:
        nonlocal least
        while not done:
            least = min(least, psutil.virtual_memory().available)
            await asyncio.sleep(0)

    async def attacked() -> Ending:
        nonlocal done
        watching = asyncio.create_task(watch())
        attack, limits = program("memory in many processes", **machine.places), Limits(**PATIENT)
        finished = await sandbox.run(Program(source=attack), limits)
        done = True
        await watching
        return finished.ending

    assert asyncio.run(attacked()) is Ending.MEMORY
    # 16 processes with 60 MiB each would take five times as much.
    assert before - least < 4 * MEMORY


def left_behind() -> list[str]:
    """Programs of the sandbox that still run."""
    found = []
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            words = one.cmdline()
            found += [" ".join(words)] if "main.py" in words else []
    return found


def test_limits_of_one_program_are_its_own(sandbox: Sandbox) -> None:
    finished = asyncio.run(sandbox.run(Program(source="print(1)"), Limits(time_s=10.0)))
    assert (finished.stdout, finished.succeeded) == (b"1\n", True)


def test_the_attacks_do_what_they_are_for_where_nothing_holds_them(machine: Machine) -> None:
    """So that no test passes for a mistake in an attack."""
    harmless = ["read a file of the user's", "read it by a link", "reach a server of the machine", "listen"]
    harmless += ["climb out by dots", "read it from the root of the parent", "reach an abstract socket"]
    harmless += ["memory in a file without a name", "memory that is shared", "see other processes"]
    for attack in harmless:
        done = asyncio.run(_unconfined(program(attack, **machine.places), machine.secret.parent))
        assert b"ESCAPED" in done, attack
