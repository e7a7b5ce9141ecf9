"""The sandbox as its callers see it: programs, limits, what it refuses, and what is left."""

import asyncio
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from streamrl.config.schema.sandbox import SandboxConfig
from streamrl.errors import ComponentError, ConfigError, DataError
from streamrl.sandbox.interpreter import read_interpreter
from streamrl.sandbox.memory import tree_memory
from streamrl.sandbox.program import Ending, Finished, Limits, Program
from streamrl.sandbox.sandbox import Sandbox, describe
from streamrl.sandbox.self_test import why_not


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    made = Sandbox(SandboxConfig(level="namespaces"))
    made.start()
    yield made
    made.close()


def run(sandbox: Sandbox, source: str, limits: Limits | None = None, **given: object) -> Finished:
    return asyncio.run(sandbox.run(Program(source=source, **given), limits))


def test_a_program_has_its_input_its_arguments_and_its_files(sandbox: Sandbox) -> None:
    source = "import sys, helper\nprint(sys.stdin.read(), sys.argv[1:], helper.X, open('data \u00e4').read())"
    files = {"helper.py": "X = 7", "data \u00e4": "\u00fc"}
    finished = run(sandbox, source, stdin="\u00f6".encode(), arguments=("a", "b c"), files=files)
    assert finished.stdout.decode() == "\u00f6 ['a', 'b c'] 7 \u00fc\n"
    assert (finished.ending, finished.exit_code, finished.stderr) == (Ending.EXITED, 0, b"")
    assert finished.succeeded


def test_how_a_program_ends(sandbox: Sandbox) -> None:
    assert run(sandbox, "raise SystemExit(3)").exit_code == 3
    assert run(sandbox, "import os; os.abort()").exit_code == 128 + 6
    assert b"NameError" in run(sandbox, "x").stderr
    assert run(sandbox, "this is no program").exit_code == 1
    assert run(sandbox, "print('\\ud800')").exit_code == 1


def test_much_input_that_nobody_reads_and_much_output(sandbox: Sandbox) -> None:
    assert run(sandbox, "print(1)", stdin=bytes(2**22)).stdout == b"1\n"
    source = "import sys; data = sys.stdin.buffer.read(); sys.stdout.buffer.write(data)"
    data = os.urandom(900_000)
    assert run(sandbox, source, stdin=data).stdout == data


def test_output_beyond_the_limit_is_cut(sandbox: Sandbox) -> None:
    limits = Limits(output_bytes=1000)
    finished = run(sandbox, "print('x' * 10**5)", limits)
    assert (finished.ending, finished.stdout) == (Ending.OUTPUT, b"x" * 1000)
    assert finished.in_words(limits) == "wrote more than 1000 bytes"
    assert not finished.succeeded


def test_one_that_is_given_up_is_ended(sandbox: Sandbox) -> None:
    async def given_up() -> None:
        task = asyncio.create_task(sandbox.run(Program(source="while True: pass"), Limits(time_s=1000.0)))
        await asyncio.to_thread(_until, 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(_until, 0)

    asyncio.run(asyncio.wait_for(given_up(), 60.0))


def _until(number: int) -> None:
    while len(_programs()) != number:
        time.sleep(0.01)


def _programs() -> list[int]:
    """Processes of the sandbox that are a program by now."""
    found = []
    for one in psutil.Process().children(recursive=True):
        try:
            found += [one.pid] if "main.py" in one.cmdline() else []
        except psutil.NoSuchProcess:
            continue
    return found


def test_programs_run_beside_each_other_each_with_its_own(sandbox: Sandbox) -> None:
    async def many() -> list[bytes]:
        programs = [Program(source=f"open('mine', 'w').write('{one}'); print({one})") for one in range(20)]
        return [one.stdout for one in await asyncio.gather(*(sandbox.run(program) for program in programs))]

    assert asyncio.run(many()) == [f"{one}\n".encode() for one in range(20)]


def test_its_own_process_is_started_again(sandbox: Sandbox) -> None:
    assert run(sandbox, "print(1)").stdout == b"1\n"
    (jailer,) = [one for one in psutil.Process().children() if "streamrl.sandbox.jailer" in one.cmdline()]
    jailer.kill()
    psutil.wait_procs([jailer], 10)
    assert run(sandbox, "print(2)").stdout == b"2\n"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "main.py", "a\0b"])
def test_a_file_that_is_not_beside_the_program_is_refused(sandbox: Sandbox, name: str) -> None:
    with pytest.raises(DataError, match=r"is no name of a file beside main\.py"):
        run(sandbox, "print(1)", files={name: ""})


def test_an_argument_that_no_program_can_have_is_refused(sandbox: Sandbox) -> None:
    with pytest.raises(DataError, match="zero byte"):
        run(sandbox, "print(1)", arguments=("a\0",))


def test_two_programs_talk_by_a_socket_and_the_second_ends_with_the_first(sandbox: Sandbox) -> None:
    first = "import socket; one = socket.socket(fileno=3); one.sendall(b'ask'); print(one.recv(100).decode())"
    second = "import socket; one = socket.socket(fileno=3); one.sendall(one.recv(100) + b'ed'); one.recv(1)"
    hangs = second + "\nwhile True: pass"

    async def pair(second: str) -> Finished:
        return await sandbox.run_pair(Program(source=first), Program(source=second), Limits(time_s=60.0))

    assert asyncio.run(pair(second)).stdout == b"asked\n"
    assert asyncio.run(pair(hangs)).stdout == b"asked\n"


def test_before_it_is_started_it_runs_nothing() -> None:
    with pytest.raises(ComponentError, match="run before start"):
        run(Sandbox(SandboxConfig()), "print(1)")


# ---- where there is none


def test_a_level_that_is_not_there_is_refused_and_nothing_is_put_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"no sandbox on this machine.*bubblewrap: no bwrap on PATH.*Install"):
        Sandbox(SandboxConfig(level="bubblewrap")).start()


def test_a_bubblewrap_that_confines_nothing_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that starts the program as it is, with the user's network, files and variables."""
    bwrap = tmp_path / "bwrap"
    status = """echo '{"exit-code": 0}' >&"$status" """
    bwrap.write_text(
        f"#!/bin/bash\ncd {tmp_path}\n"
        'while [ $# -gt 0 ]; do\n  case "$1" in\n'
        '    --file) cat <&"$2" > main.py; shift 3 ;;\n    --json-status-fd) status=$2; shift 2 ;;\n'
        "    --) shift; break ;;\n    *) shift ;;\n  esac\ndone\n"
        f'while [ "$1" != "--" ]; do shift; done\nshift\n"$@"\n{status}\n'
    )
    bwrap.chmod(bwrap.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    for one in (tmp_path, *tmp_path.parents):
        if one.owner() == "root" and one != Path("/"):
            one.chmod(one.stat().st_mode | 0o077)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(ConfigError, match=r"bubblewrap: it does not hold: .*network"):
        Sandbox(SandboxConfig(level="bubblewrap", python="/usr/bin/python3")).start()


def test_a_self_test_names_what_does_not_hold() -> None:
    def ended(**given: object) -> Finished:
        usual = {"ending": Ending.EXITED, "exit_code": 0, "stdout": b"", "stderr": b"", "wall_s": 0.0, "cpu_s": 0.0}
        return Finished(**(usual | given))

    assert why_not(lambda *_: ended(stdout=b'{"network": true}')) == ""
    assert why_not(lambda *_: ended(stdout=b'{"network": false, "files": false, "users": true}')) == (
        "it does not hold: network, files"
    )
    assert why_not(lambda *_: ended(exit_code=1, stderr=b"a\nNo such Python\n")) == (
        "its first program ended with exit code 1: No such Python"
    )


def test_a_python_that_is_none_or_that_would_open_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="is no Python that runs"):
        read_interpreter(str(tmp_path / "python"))
    with pytest.raises(ConfigError, match="is no Python that runs"):
        read_interpreter("/bin/true")
    home = tmp_path / "home"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "python").symlink_to("/usr/bin/env")
    (home / "bin" / "python").unlink()
    fake = home / "bin" / "python"
    fake.write_text(f"#!/bin/sh\necho '[[\"{home}\"], []]'\n")
    fake.chmod(0o755)
    monkeypatch.setenv("HOME", str(home))
    with pytest.raises(ConfigError, match="would see files of yours; name another Python"):
        read_interpreter(str(fake))


@pytest.mark.parametrize("level", ["namespaces", "bubblewrap"])
def test_a_python_that_lies_in_the_folder_that_is_written_to(level: str) -> None:
    if level == "bubblewrap" and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        python = Path(os.path.realpath("/usr/bin/python3"))
        (folder / "bin").mkdir()
        (folder / "bin/python").symlink_to(python)
        (folder / "pyvenv.cfg").write_text(f"home = {python.parent}\n")
        made = Sandbox(SandboxConfig(level=level, python=str(folder / "bin/python")))
        made.start()
        source = "import sys; print(sys.prefix); open('new', 'w').write('x'); open(sys.prefix + '/y', 'w')"
        finished = run(made, source)
        made.close()
    assert finished.stdout.decode() == f"{name}\n"
    assert b"Read-only file system" in finished.stderr


@pytest.mark.parametrize("level", ["namespaces", "bubblewrap"])
@pytest.mark.parametrize("root", ["/home", "/opt"])
def test_a_python_below_a_users_folder_shows_nothing_beside_it(level: str, root: str) -> None:
    """Linked to from a folder with other things in it, as uv and pyenv do."""
    if level == "bubblewrap" and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    if not os.access(root, os.W_OK):
        pytest.skip(f"{root} cannot be written to")
    with tempfile.TemporaryDirectory(dir=root) as name:
        user = Path(name)
        user.chmod(0o755)
        python = Path(os.path.realpath("/usr/bin/python3"))
        (user / ".venv/bin").mkdir(parents=True)
        (user / ".venv/bin/python").symlink_to(python)
        (user / ".venv/pyvenv.cfg").write_text(f"home = {python.parent}\n")
        (user / ".local/bin").mkdir(parents=True)
        (user / ".local/token").write_text("secret")
        (user / ".local/bin/python").symlink_to(user / ".venv/bin/python")
        (user / "linked").symlink_to(user / ".venv", target_is_directory=True)
        for given in (".venv/bin/python", ".local/bin/python", "linked/bin/python"):
            made = Sandbox(SandboxConfig(level=level, python=str(user / given)))
            made.start()
            source = f"import os; print(sorted(os.listdir({name!r})), os.path.exists({name!r} + '/.local/token'))"
            finished = run(made, source)
            made.close()
            seen, token = finished.stdout.decode().rsplit(" ", 1)
            assert "secret" not in seen
            assert token == "False\n", finished.stderr.decode()


def test_packages_are_those_of_the_named_python(sandbox: Sandbox) -> None:
    """Of the usual one there are none."""
    import sys

    assert b"ModuleNotFoundError" in run(sandbox, "import numpy").stderr
    named = Sandbox(SandboxConfig(level="namespaces", python=sys.executable, memory_bytes=2**30))
    named.start()
    assert run(named, "import numpy; print(numpy.arange(3).sum())").stdout == b"3\n"
    named.close()


def test_what_a_level_gives_in_words() -> None:
    assert describe("namespaces", Limits())[0] == "sandbox: namespaces, made by streamrl; system calls by a filter"
    assert "5 s, 512 MiB, 32 processes, 1024 KiB of output, 64 MiB of files" in describe("bubblewrap", Limits())[2]


def test_memory_of_a_tree(tmp_path: Path) -> None:
    for pid, parent, pages in ((10, 1, 5), (11, 10, 7), (12, 11, 1), (13, 1, 100)):
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "stat").write_text(f"{pid} (a) name) S {parent} 0 0")
        (folder / "statm").write_text(f"1000 {pages} 3")
    (tmp_path / "self").mkdir()
    assert tree_memory(10, tmp_path) == 13 * os.sysconf("SC_PAGE_SIZE")
