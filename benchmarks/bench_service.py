"""The gateway under 1,000 streams at once, and beside a bare Ray Serve application that streams the same chunks.

    make bench-service

A live run with the scripted engine, which trains on nothing meanwhile. Wanted:

* no error of 1,000 streams at once, and memory of the gateway that stays what the first round made it;
* while replicas come and go, 1 -> 8 -> 2, no error, and a 99th percentile of the time to an answer's first bytes of at
  most 5 times that of the same rate at rest;
* in each dialect a 99th percentile of an answer's time of at most 1.1 times a chat's;
* at half of the rate that saturates the Serve application, and at the same rate for both, in turns, a 99th percentile
  of an answer's overhead of at most 1.5 times that of Serve. The overhead is what an answer takes above the time in
  which it is made: 48 tokens of 12.5 ms here, which the gateway sends in chunks of 50 ms; on Serve the same chunks, one
  each 50 ms.

Writes benchmarks/out/service.json.
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
from report import Report
from service_parts.dialect_figures import MODEL, each_dialect
from service_parts.dialects import DIALECTS, write_chat_model
from service_parts.load import Answers, Load

import streamrl
from streamrl.client import Client
from streamrl.client.address import Address, Where
from streamrl.errors import ComponentError
from streamrl.services.run.folder import RunFolder

ROOT = Path(__file__).parents[1]
STREAMRL = Path(sys.executable).with_name("streamrl")
SERVE_PYTHON = ROOT / ".venvs/serve/bin/python"
ECHO = Path(__file__).parent / "peers/serve_echo.py"
TOKENS, TOKEN_S = 48, 0.0125
CHUNK_S = 0.05
"""From one chunk to the next on Serve (`peers/serve_echo.py`)."""
CONFIG = f"""
name = "{MODEL}"
[model]
preset = "none"
path = "model"
[rollout]
replicas = 1
engine = "scripted"
slots = 1024
[rollout.sampling]
max_new_tokens = {TOKENS}
[rollout.scripted]
latency_steps = {TOKENS}
step_s = {TOKEN_S}
[learner]
steps = 100000
[eval]
every = 100000
[gateway]
enabled = true
max_requests = 4096
stream_weights = {{ train = 0.0 }}
"""
BODY = DIALECTS["completions"].body(MODEL, TOKENS)
UP_S, LOOK_S = 120.0, 0.2
MIB = 2**20


def main() -> int:
    parser = argparse.ArgumentParser(description="the gateway under load, and against a bare Ray Serve application")
    parser.add_argument("--streams", type=int, default=1000, help="at once")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement at a rate")
    parser.add_argument("--clients", type=int, default=400, help="that find the rate at which Serve saturates")
    parser.add_argument("--scaling-rate", type=float, default=20.0, help="requests a second while replicas come and go")
    parser.add_argument("--serve-python", type=Path, default=SERVE_PYTHON)
    options = parser.parse_args()
    report = Report("service")
    with tempfile.TemporaryDirectory(prefix="bench-service-") as name, live(Path(name)) as (address, gateway):
        asyncio.run(measure(report, options, Path(name), address, gateway))
    return report.finish()


async def measure(
    report: Report, options: argparse.Namespace, folder: Path, address: Address, gateway: psutil.Process
) -> None:
    headers = {"authorization": f"Bearer {address.token}"}
    async with Load(f"{address.url}/v1/completions", headers, BODY) as ours:
        await at_once(report, ours, gateway, options.streams, options.rounds)
        async with streamrl.connect(folder / f"runs/{MODEL}") as client:
            await while_scaling(report, ours, client, options)
        await each_dialect(report, address, gateway, TOKENS, options)
        pieces = await typical(ours)
        report.add("chunks of the answer that both stream", len(pieces), "")
        with echo(options.serve_python, folder, pieces) as url:
            async with Load(url, {}, BODY) as bare:
                await beside(report, ours, bare, len(pieces) * CHUNK_S, options)


async def at_once(report: Report, load: Load, gateway: psutil.Process, streams: int, rounds: int) -> None:
    """Errors and memory of all streams at once, several times."""
    rounds_of: list[Answers] = []
    resident = [gateway.memory_info().rss]
    for _ in range(rounds):
        rounds_of.append(await load.at_once(streams))
        resident.append(gateway.memory_info().rss)
    errors = [error for answers in rounds_of for error in answers.errors]
    for error in errors[:3]:
        print(error, file=sys.stderr)
    report.add(f"errors of {streams} streams at once, {rounds} rounds", len(errors), "", at_most=0)
    report.add("slowest of them", max(max(one.seconds, default=0.0) for one in rounds_of), "s")
    report.add("resident memory of the gateway before", resident[0] / MIB, "MiB")
    report.add("after the first round", resident[1] / MIB, "MiB")
    report.add("after the last over after the first", resident[-1] / resident[1], "x", at_most=1.05)


async def while_scaling(report: Report, load: Load, client: Client, options: argparse.Namespace) -> None:
    """First bytes at one rate: with one replica at rest, and while there are to be eight, then two."""
    steady: list[Answers] = []
    moving: list[Answers] = []
    for _ in range(options.rounds):
        await become(client, 1)
        steady.append(await load.at_rate(options.scaling_rate, options.seconds))
        moving.append(await load.while_going(options.scaling_rate, become(client, 8, 2)))
    await become(client, 1)
    errors = [error for answers in (*steady, *moving) for error in answers.errors]
    for error in errors[:3]:
        print(error, file=sys.stderr)
    report.add("errors while replicas come and go", len(errors), "", at_most=0)
    tails = [[float(np.percentile(one.first or [np.inf], 99)) for one in answers] for answers in (steady, moving)]
    report.add("p99 to an answer's first bytes, one replica at rest", statistics.median(tails[0]), "s")
    report.add("p99 to them while replicas come and go", statistics.median(tails[1]), "s")
    ratio = statistics.median(moved / rested for rested, moved in zip(*tails, strict=True))
    report.add("p99 to first bytes, 1 -> 8 -> 2 over at rest", ratio, "x", at_most=5.0)


async def become(client: Client, *counts: int) -> None:
    """Have so many replicas, one count after the other, each until they serve."""
    for count in counts:
        await client.scale(rollout=count)
        while len((await client.status())["replicas"]) != count:  # noqa: ASYNC110 - the gateway has no event for it
            await asyncio.sleep(LOOK_S)


async def typical(load: Load) -> list[bytes]:
    """The chunks of the answer in the middle of several, by how many they are."""
    answers = sorted([await load.pieces() for _ in range(9)], key=len)
    return answers[len(answers) // 2]


async def beside(report: Report, ours: Load, bare: Load, bare_s: float, options: argparse.Namespace) -> None:
    """Both at half of the rate that saturates the bare one, in turns. bare_s: in which an answer of it is made."""
    await bare.at_once(options.clients)  # its first answers start what serves the others
    saturated = await bare.rate(options.clients, options.seconds)
    report.add(f"answers a second that {options.clients} clients get of Ray Serve", saturated, "1/s")
    errors = 0
    tails: dict[str, list[float]] = {"Ray Serve": [], "the gateway": []}
    for _ in range(options.rounds):
        for name, load, made_s in (("Ray Serve", bare, bare_s), ("the gateway", ours, TOKENS * TOKEN_S)):
            answers = await load.at_rate(saturated / 2, options.seconds)
            errors += len(answers.errors)
            tails[name].append(float(np.percentile(answers.seconds or [np.inf], 99)) - made_s)
    report.add("errors at half of that rate", errors, "", at_most=0)
    for name, overheads in tails.items():
        report.add(f"p99 of an answer's overhead, {name}", statistics.median(overheads), "s")
    ratio = statistics.median(gateway / serve for serve, gateway in zip(*tails.values(), strict=True))
    report.add("p99 overhead of the gateway over that of Ray Serve", ratio, "x", at_most=1.5)


@contextmanager
def live(folder: Path) -> Iterator[tuple[Address, psutil.Process]]:
    """A run, with the address and the process of its gateway."""
    (folder / "run.toml").write_text(CONFIG)
    write_chat_model(folder / "model")
    subprocess.run([STREAMRL, "up", "run.toml", "--detach"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    run = folder / f"runs/{MODEL}"
    try:
        address = until_ready(Where(run))
        launch = RunFolder.open(run).record.launch
        assert launch is not None, "it is up"
        below = psutil.Process(launch.watcher.pid).children(recursive=True)
        yield address, next(one for one in below if "".join(one.cmdline()[:1]).startswith("ray::GatewayActor"))
    finally:
        subprocess.run([STREAMRL, "down", run], check=False, stdout=subprocess.DEVNULL)


def until_ready(where: Where) -> Address:
    """Look until the run has a gateway, and ask that until a replica serves. Raises TimeoutError."""
    ends = time.monotonic() + UP_S
    while time.monotonic() < ends:
        with contextlib.suppress(ComponentError, urllib.error.URLError):
            address = where.find()
            urllib.request.urlopen(f"{address.url}/readyz", timeout=10).close()
            return address
        time.sleep(LOOK_S)
    raise TimeoutError(f"the gateway of {where} was not ready within {UP_S} s")


@contextmanager
def echo(python: Path, folder: Path, pieces: list[bytes]) -> Iterator[str]:
    """The bare Serve application, with its URL."""
    path = folder / "pieces.json"
    path.write_text(json.dumps([piece.decode() for piece in pieces]))
    started = subprocess.Popen([python, ECHO, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with started as process:
        yield f"http://127.0.0.1:{first_number(process)}/"


def first_number(process: "subprocess.Popen[str]") -> int:
    """The first line that is a number; Ray may say something before."""
    assert process.stdout is not None, "it is a pipe"
    for line in process.stdout:
        if line.strip().isdecimal():
            return int(line)
    raise RuntimeError(f"{process.args} ended with exit code {process.wait()} before it served")


if __name__ == "__main__":
    sys.exit(main())
