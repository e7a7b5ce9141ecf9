"""The gateway of a live run, as clients use it: OpenAI's own client, curl, and kills in between."""

import json
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest
from support.gateway.local_gateway import TEMPLATE
from support.runs.live_run import LiveRun, live_run

from streamrl.config.schema.run import ModelConfig
from streamrl.gateway.auth import Scope
from streamrl.models.load import prepare_model_folder
from streamrl.services.commands.page_link import page_link
from streamrl.services.commands.run_verbs import status
from streamrl.services.run.folder import RunFolder
from streamrl.services.run.gateway_tokens import token_path

pytestmark = pytest.mark.ray

LONG = ("--learner.steps", "100000", "--eval.every", "100000", "--checkpoint.every", "1000")


class Client:
    """What a user of a run with a gateway has."""

    def __init__(self, run: LiveRun) -> None:
        if not run.events_of("gateway"):
            assert run.read_until(lambda event: event["kind"] == "gateway"), run.end()
        self.folder = RunFolder.open(run.folder)
        self.url = run.events_of("gateway")[-1]["url"]
        self.token = token_path(self.folder).read_text()
        self.name = self.folder.name
        self._opened: list[openai.OpenAI] = []

    def openai(self, scope: Scope | None = Scope.GENERATE) -> openai.OpenAI:
        token = token_path(self.folder, scope).read_text()
        self._opened.append(openai.OpenAI(base_url=f"{self.url}/v1", api_key=token, max_retries=5))
        return self._opened[-1]

    def close(self) -> None:
        for one in self._opened:
            one.close()

    def get(self, path: str) -> tuple[int, str]:
        request = urllib.request.Request(self.url + path, headers={"authorization": f"Bearer {self.token}"})
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def curl(self, *arguments: str) -> str:
        given = ["curl", "--silent", "--show-error", "--max-time", "60", "-H", f"Authorization: Bearer {self.token}"]
        return subprocess.run([*given, *arguments], capture_output=True, text=True, check=True, timeout=90).stdout


def wait_ready(run: LiveRun, client: Client) -> None:
    """After each event of the run, until replicas serve."""
    while client.get("/readyz")[0] != 200:
        assert run.read_until(lambda event: event["kind"] in ("step", "replicas", "phase")), run.end()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a chat template."""
    folder = tmp_path_factory.mktemp("model")
    prepare_model_folder(ModelConfig(preset="tiny-qwen3"), 0, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def trained(user_folder: Path, streamrl_path: Path, model: Path) -> Iterator[tuple[LiveRun, Client]]:
    """A run on the torch engine that trains while it is asked."""
    told = ("--model.preset", "none", "--model.path", str(model), "--gateway.enabled", "true")
    sampling = ("--rollout.sampling.max_new_tokens", "32")
    with live_run(user_folder, streamrl_path, "asked", *LONG, *told, *sampling) as run:
        client = Client(run)
        wait_ready(run, client)
        yield run, client
        client.close()
        watcher = run.watcher()
        below = watcher.children(recursive=True)
        assert any("GatewayActor" in "".join(one.cmdline()[:1]) for one in below)
        run.process.send_signal(signal.SIGINT)
        code, _ = run.end()
        assert code == 130
        assert psutil.wait_procs([watcher, *below], timeout=10)[1] == []


def test_openais_client_gets_completions_of_the_live_policy_with_ids_log_probs_and_versions(trained: Any) -> None:
    _, client = trained
    asked = client.openai()
    (served,) = asked.models.list().data
    assert served.id == client.name
    answer = asked.completions.create(model=served.id, prompt="1+1=", n=4, max_tokens=8, logprobs=0, temperature=0.7)
    assert len(answer.choices) == 4
    for choice in answer.choices:
        sampled = choice.streamrl
        assert choice.logprobs.token_logprobs == sampled["logprobs"]
        assert len(sampled["token_ids"]) == len(sampled["logprobs"]) <= 8
        assert sampled["version_spans"][0][0] == 0
        assert choice.finish_reason in ("stop", "length")


def test_openais_client_streams_a_chat_and_counts_its_tokens(trained: Any) -> None:
    _, client = trained
    asked = client.openai()
    told = {"model": client.name, "messages": [{"role": "user", "content": "1+1"}], "max_tokens": 20, "seed": 4}
    chunks = list(
        asked.chat.completions.create(**told, stream=True, logprobs=True, stream_options={"include_usage": True})
    )
    *parts, last = chunks
    assert parts[0].choices[0].delta.role == "assistant"
    ids = [one for part in parts for one in part.choices[0].streamrl["token_ids"]]
    logprobs = [one.logprob for part in parts for one in part.choices[0].logprobs.content]
    assert len(ids) == len(logprobs) == last.usage.completion_tokens
    assert parts[-1].choices[0].finish_reason in ("stop", "length")
    assert parts[0].streamrl["prompt_token_ids"] == [
        asked.chat.completions.create(**{**told, "max_tokens": 1}).streamrl["prompt_token_ids"][0]
    ]


def test_greedy_answers_of_one_version_are_equal_and_a_stop_id_ends_one(trained: Any) -> None:
    _, client = trained
    asked = client.openai()
    answers = asked.completions.create(model=client.name, prompt=["1+1="] * 2, temperature=0, max_tokens=16).choices
    ids = [choice.streamrl["token_ids"] for choice in answers]
    if answers[0].streamrl["version_spans"] == answers[1].streamrl["version_spans"]:
        assert ids[0] == ids[1]
    stops = list(range(3, 19))
    every = {"stop_token_ids": stops}
    (short,) = asked.completions.create(model=client.name, prompt="1+1=", max_tokens=16, extra_body=every).choices
    *before, last = short.streamrl["token_ids"]
    assert not set(before) & set(stops)
    assert (short.finish_reason == "stop") == (last in (2, *stops))


def test_curl_is_enough(trained: Any) -> None:
    run, client = trained
    body = json.dumps({"model": client.name, "prompt": "2+2=", "max_tokens": 4})
    answer = json.loads(client.curl(f"{client.url}/v1/completions", "-d", body, "-H", "Content-Type: application/json"))
    assert answer["choices"][0]["streamrl"]["token_ids"]
    lines = client.curl(
        "--no-buffer",
        f"{client.url}/v1/completions",
        "-d",
        body.replace("}", ', "stream": true}'),
        "-H",
        "Content-Type: application/json",
    ).split("\n\n")
    assert lines[-2] == "data: [DONE]"
    events_until_both_serve(client)
    said = json.loads(client.curl(f"{client.url}/api/status"))
    assert {one["name"] for one in said["replicas"]} == {"rollout-0", "rollout-1"}
    assert "streamrl_step " in client.curl(f"{client.url}/metrics")
    assert status(client.folder)["gateway"]["url"] == client.url
    assert RunFolder.open(run.folder).record.launch.gateway == client.url


def events_until_both_serve(client: Any) -> dict[str, Any]:
    """The newest event of each kind, once a step was made and both replicas serve; the first that is ready begins."""
    token = page_link(client.folder).partition("#token=")[2]
    told: dict[str, Any] = {}
    address = urllib.request.Request(f"{client.url}/api/events", headers={"authorization": f"Bearer {token}"})
    with urllib.request.urlopen(address) as stream:
        while not ("step" in told and len(told.get("status", {}).get("behind", ())) == 2):
            line = stream.readline()
            if line.startswith(b"data: "):
                event = json.loads(line[6:])
                told[event["kind"]] = event
    return told


def test_the_page_follows_a_live_run(trained: Any) -> None:
    _, client = trained
    with urllib.request.urlopen(page_link(client.folder).partition("#")[0], timeout=30) as response:
        assert b'"page/main.js"' in response.read()
    told = events_until_both_serve(client)
    assert told["phase"]["name"]
    status = told["status"]
    assert {one["name"] for one in status["behind"]} == {"rollout-0", "rollout-1"}
    assert status["queue_rows"].keys() == {"pending", "complete", "scored", "ready", "leased"}
    assert {one["who"] for one in status["waits"]} == {"learner", "replicas", "finished rows"}
    _, text = client.get("/api/history?points=16&figure=reward/mean&figure=learner/wait_share")
    history = json.loads(text)
    assert history["rows"] >= told["step"]["step"]
    assert history["figures"].keys() == {"reward/mean", "learner/wait_share"}


def test_errors_reach_openais_client_as_its_own_classes(trained: Any) -> None:
    _, client = trained
    with pytest.raises(openai.NotFoundError) as missing:
        client.openai().completions.create(model="gpt-4", prompt="1")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        client.openai().completions.create(model=client.name, prompt="1" * 60)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.PermissionDeniedError):
        client.openai(Scope.SUBMIT).models.list()
    wrong = openai.OpenAI(base_url=f"{client.url}/v1", api_key="wrong")
    with wrong, pytest.raises(openai.AuthenticationError):
        wrong.models.list()


def test_no_secret_is_on_a_command_line_in_a_log_in_the_record_or_in_the_configuration(trained: Any) -> None:
    run, client = trained
    secrets = [client.token, *(token_path(client.folder, scope).read_text() for scope in Scope)]
    said = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess):  # nor has a zombie a command line any more
            said.append(" ".join(process.cmdline()))
    files = [run.folder / "run.json", run.folder / "config.toml", *(run.folder / "logs").glob("*.log")]
    said += [file.read_text() for file in files]
    assert len(files) > 5
    assert not [secret for secret in secrets for text in said if secret in text]


def test_it_listens_on_this_machine_alone(trained: Any) -> None:
    run, _ = trained
    (gateway,) = run.actors("GatewayActor")
    listening = {one.laddr.ip for one in gateway.net_connections() if one.status == psutil.CONN_LISTEN}
    assert listening <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}


@pytest.mark.long
def test_a_killed_gateway_comes_back_at_the_same_place_and_a_killed_replicas_answers_come_from_another(
    user_folder: Path, streamrl_path: Path
) -> None:
    told = ("--rollout.engine", "scripted", "--gateway.enabled", "true")
    with live_run(user_folder, streamrl_path, "kills", *LONG, *told) as run, ThreadPoolExecutor(1) as beside:
        client = Client(run)
        wait_ready(run, client)
        asked = client.openai()
        run.until_step(run.steps()[-1]["step"] + 5 if run.steps() else 5)

        def ask(times: int) -> list[int]:
            create = asked.completions.create
            return [len(create(model=client.name, prompt="1", max_tokens=6).choices) for _ in range(times)]

        answers = beside.submit(ask, 40)
        run.actors("RolloutReplica")[0].send_signal(signal.SIGKILL)
        assert answers.result(timeout=60) == [1] * 40

        step = run.steps()[-1]["step"]
        run.actors("GatewayActor")[0].send_signal(signal.SIGKILL)
        assert run.read_until(lambda event: event["kind"] == "gateway")
        assert run.events_of("gateway")[-1]["url"] == client.url
        wait_ready(run, client)
        assert ask(3) == [1] * 3
        run.until_step(step + 20)
        assert any(text.startswith("gateway: its process died") for text in run.notices())
        client.close()
        run.process.send_signal(signal.SIGINT)
        assert run.end()[0] == 130
