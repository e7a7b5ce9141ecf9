"""Clients that ask a run's gateway all the time, whatever is killed meanwhile."""

import http.client
import json
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from streamrl.errors import RunFolderError
from streamrl.services.run.folder import RunFolder
from streamrl.services.run.gateway_tokens import token_path

CLIENTS = 4
BREAK_S = 0.05
"""Seconds before a client that was not answered asks again."""


@contextmanager
def guests_of(folder: Callable[[], Path]) -> Iterator[threading.Event]:
    """Ask for completions as long as the block lasts. Some of them must have been answered, each of them whole. folder:
    gives that of the run. Yields what is set with the first answer."""
    ended, first, answered = threading.Event(), threading.Event(), []
    clients = [threading.Thread(target=_ask, args=(folder, ended, first, answered)) for _ in range(CLIENTS)]
    for client in clients:
        client.start()
    try:
        yield first
    finally:
        ended.set()
        for client in clients:
            client.join()
    assert answered, "no client was ever answered"
    assert set(answered) == {2}


def _ask(folder: Callable[[], Path], ended: threading.Event, first: threading.Event, answered: list[int]) -> None:
    while not ended.is_set():
        try:
            answered.append(_completions(RunFolder.open(folder())))
            first.set()
        except (OSError, http.client.HTTPException, RunFolderError):
            ended.wait(BREAK_S)  # the gateway is dead, or not there yet


def _completions(run: RunFolder) -> int:
    launch = run.record.launch
    if launch is None or not launch.gateway:
        raise ConnectionRefusedError("there is no gateway yet")
    body = json.dumps({"model": run.name, "prompt": "1+1=", "n": 2, "max_tokens": 8}).encode()
    headers = {"authorization": f"Bearer {token_path(run).read_text()}", "content-type": "application/json"}
    request = urllib.request.Request(f"{launch.gateway}/v1/completions", body, headers)
    with urllib.request.urlopen(request, timeout=30) as response:
        return len(json.loads(response.read())["choices"])
