"""A module in the place of wandb, which misbehaves as `STAND_IN` says: it has of the published interface what a tracker
calls. Each call is a line of `calls` beside it."""

from pathlib import Path

SOURCE = """
import os, pathlib, time

HERE = pathlib.Path(__file__).parent
WAY = (HERE / "way").read_text()
KEPT = []


def note(what):
    with open(HERE / "calls", "a") as file:
        file.write(what + "\\n")


class Settings:
    def __init__(self, **options):
        pass


class Run:
    url = "http://stand-in"
    summary = {}
    dir = str(HERE)
    starting_step = int((HERE / "starts").read_text()) if (HERE / "starts").exists() else 0

    def log(self, values, step):
        note(f"log {step}")
        if WAY == "hang":
            time.sleep(3600)
        if WAY == "hang with a program":
            import subprocess
            program = subprocess.Popen(["sleep", "3600"])
            (HERE / "program").write_text(str(program.pid))
            time.sleep(3600)
        if WAY == "talk":
            print(f"word {step} " * 2 ** 16, flush=True)
        if WAY == "raise":
            raise RuntimeError(f"no step {step}")
        if WAY == "raise once" and step == 1:
            raise SystemExit("one time")
        if WAY == "exit":
            os._exit(9)
        if WAY == "flood":
            while True:
                KEPT.append(bytearray(2 ** 26))

    def log_artifact(self, artifact):
        note("artifact")

    def finish(self, exit_code):
        note(f"finish {exit_code}")
        if WAY == "hang at the end":
            time.sleep(3600)


class Artifact:
    def __init__(self, name, type):
        pass

    def add_file(self, path):
        pass

    add_dir = add_file


def init(**options):
    note(f"init {options['id']} {options['resume']}")
    if WAY == "hang at the start":
        time.sleep(3600)
    if WAY == "no start":
        raise ValueError("the key is wrong")
    return Run()
"""


def stand_in(folder: Path, way: str) -> Path:
    """The folder with the module, for PYTHONPATH."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "wandb.py").write_text(SOURCE)
    (folder / "way").write_text(way)
    return folder


def calls(folder: Path) -> list[str]:
    path = folder / "calls"
    return path.read_text().splitlines() if path.exists() else []
