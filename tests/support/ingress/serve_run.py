"""A live run with an application in Ray Serve, and what its clients ask of it."""

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from support.runs.live_run import STREAMRL, LiveRun, live_run

from streamrl.gateway.auth import Scope
from streamrl.gateway.sessions.session_body import HEADER
from streamrl.services.run.folder import RunFolder
from streamrl.services.run.gateway_tokens import token_path

OPTIONS = (
    *("--rollout.engine", "scripted", "--rollout.sampling.max_new_tokens", "24"),
    *("--rollout.scripted.latency_steps", "100", "--rollout.scripted.step_s", "0.01", "--rollout.slots", "256"),
    *("--learner.max_staleness", "3", "--eval.every", "100000", "--gateway.max_body_bytes", "4000"),
    # Nothing is trained: what a session sampled stays young.
    *("--gateway.stream_weights", "{ train = 0.0 }", "--gateway.max_prompt_tokens", "40"),
)


class ServedRun:
    """serve_url: of its application."""

    def __init__(self, run: LiveRun, processes: Callable[[], list[psutil.Process]]) -> None:
        self.run = run
        self.folder = RunFolder.open(run.folder)
        self.own_url: str = run.events_of("gateway")[-1]["url"]
        self.serve_url: str = run.events_of("serve")[-1]["url"]
        self._processes = processes

    def token(self, scope: Scope | None = None) -> str:
        return token_path(self.folder, scope).read_text()

    def headers(self, session: str | None = None) -> dict[str, str]:
        told = {"authorization": f"Bearer {self.token()}", "content-type": "application/json"}
        return told if session is None else {**told, HEADER: session}

    def ask(self, path: str, body: Any = None, *, url: str | None = None, session: str | None = None) -> Any:
        """(status, JSON)."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request((url or self.serve_url) + path, data=data, headers=self.headers(session))
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def complete(self, session: str | None, prompt: list[int], max_tokens: int = 4) -> list[int]:
        """The ids of a completion."""
        body = {"model": self.folder.name, "prompt": prompt, "max_tokens": max_tokens}
        status, told = self.ask("/v1/completions", body, session=session)
        assert status == 200, told
        ids: list[int] = told["choices"][0]["streamrl"]["token_ids"]
        return ids

    def stream(self, body: Any) -> tuple[list[int], bool]:
        """(ids, whether it came to its end)."""
        data, ids = json.dumps(body).encode(), []
        request = urllib.request.Request(f"{self.serve_url}/v1/completions", data=data, headers=self.headers())
        with urllib.request.urlopen(request, timeout=120) as response:
            for line in response:
                if line.strip() == b"data: [DONE]":
                    return ids, True
                if line.startswith(b"data: "):
                    ids += json.loads(line[6:])["choices"][0]["streamrl"]["token_ids"]
        return ids, False

    def replicas(self) -> list[psutil.Process]:
        """The processes of the application's replicas."""
        return [one for one in self._processes() if _title(one).startswith("ray::ServeReplica")]

    def serve_processes(self) -> list[psutil.Process]:
        """All of Serve's."""
        titles = ("ray::ServeReplica", "ray::ServeController", "ray::ProxyActor")
        return [one for one in self._processes() if _title(one).startswith(titles)]

    def until(self, done: Callable[[], bool]) -> None:
        """After each event of the run."""
        while not done():
            assert self.run.read_until(lambda event: event["kind"] == "replicas"), self.run.end()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def served_run(
    folder: Path,
    name: str,
    *options: str,
    replicas: int,
    processes: Callable[[], list[psutil.Process]] | None = None,
) -> Iterator[ServedRun]:
    """The run, once its application answers. processes: of the Ray that it lives in, if that is not its own."""
    serve = f"{{ replicas = {replicas}, port = {free_port()}, replicas_per_node = {0 if processes is None else 1} }}"
    given = ("--gateway.enabled", "true", "--gateway.serve", serve)
    with live_run(folder, STREAMRL, name, *options, *given) as run:
        told: set[str] = set()

        def answers(event: dict[str, Any]) -> bool:
            told.add(event["kind"])
            return {"serve", "gateway_ready"} <= told

        assert run.read_until(answers), run.end()
        yield ServedRun(run, processes or (lambda: run.watcher().children(recursive=True)))


def _title(process: psutil.Process) -> str:
    try:
        return "".join(process.cmdline()[:1])
    except psutil.Error:
        return ""
