"""Agents at the gateway of a live run: OpenAI's client with a session's header, rewarded, trained once, with kills."""

import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path

import numpy as np
import openai
import pytest
from support.runs.live_run import LiveRun, live_run

import streamrl
from streamrl.buffers.ledger.facts import ledger_facts
from streamrl.buffers.ledger.ledger import read_ledger
from streamrl.buffers.ledger.records import Declined, Gathered, Issued, Offered, Step
from streamrl.buffers.recovery.verify import verify_queue
from streamrl.buffers.segments.reader import SegmentReader
from streamrl.config.schema.streams import OFFERED_STREAM
from streamrl.errors import ComponentError, RequestError
from streamrl.gateway.sessions.session_body import HEADER
from streamrl.services.run.folder import RunFolder
from streamrl.services.run.gateway_tokens import token_path
from streamrl.types import TokenOrigin

pytestmark = pytest.mark.ray

GROUPS, SIZE, STEPS, AGENTS = 2, 4, 8, 4
ONLY_AGENTS = (
    *("--rollout.engine", "scripted", "--rollout.group_size", str(SIZE), "--learner.groups_per_step", str(GROUPS)),
    *("--learner.steps", str(STEPS), "--learner.max_staleness", "3", "--eval.every", "100000"),
    *("--checkpoint.every", "2", "--gateway.enabled", "true", "--gateway.max_prompt_tokens", "24"),
    *("--gateway.stream_weights", "{ train = 0.0 }"),
)


@contextmanager
def openais_client(run: RunFolder, url: str, session: str) -> Iterator[openai.OpenAI]:
    key = token_path(run).read_text()
    with openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=2, default_headers={HEADER: session}) as client:
        yield client


def episode(run: RunFolder, url: str, session: str) -> None:
    """Two turns, and a fork of the second."""
    with openais_client(run, url, session) as client:
        asked = {"model": run.name, "max_tokens": 4}
        first = client.completions.create(prompt="1+1=", **asked)
        prompt = [*first.streamrl["prompt_token_ids"][0], *first.choices[0].streamrl["token_ids"], 5, 6]
        client.completions.create(prompt=prompt, **asked)
        client.completions.create(prompt=[*first.streamrl["prompt_token_ids"][0], 7], **asked)


class Agents:
    """They play until the run has ended; an episode that broke is begun anew under another name."""

    def __init__(self, folder: Path, url: str) -> None:
        self._run, self._url = RunFolder.open(folder), url
        self._folder = folder
        self.over = threading.Event()
        self.rewarded: list[str] = []

    def play(self, agent: int) -> None:
        with streamrl.connect(self._folder, patience_s=20.0) as client:
            for number in count():
                name = f"agent-{agent}-{number}"
                try:
                    episode(self._run, self._url, name)
                    client.reward(name, (agent + number) % 3 / 2, group="game")
                    self.rewarded.append(name)
                except (openai.APIError, RequestError, ComponentError):
                    # The run ends or starts again, the session is lost with its gateway, or its version is too old.
                    self.over.wait(0.2)
                if self.over.is_set():
                    return


@pytest.mark.long
@pytest.mark.timeout(600)
def test_invariants_1_and_2_hold_for_sessions_of_agents_while_parts_are_killed(
    user_folder: Path, streamrl_path: Path
) -> None:
    with (
        live_run(user_folder, streamrl_path, "agents", *ONLY_AGENTS) as run,
        ThreadPoolExecutor(AGENTS) as beside,
    ):
        assert run.read_until(lambda event: event["kind"] == "gateway"), run.end()
        agents = Agents(run.folder, run.events_of("gateway")[-1]["url"])
        playing = [beside.submit(agents.play, agent) for agent in range(AGENTS)]
        try:
            for step, part in ((2, "GatewayActor"), (4, "QueueActor")):
                run.until_step(step)
                kill(run, part)
            code, err = run.end()
        finally:
            agents.over.set()
        for one in playing:
            one.result(timeout=90)
    assert code == 0, err
    check_books(run.folder, agents.rewarded)
    check_rows(run.folder)


def kill(run: LiveRun, name: str) -> None:
    run.actors(name)[0].send_signal(signal.SIGKILL)


def check_books(folder: Path, rewarded: list[str]) -> None:
    """What the ledger's own records say."""
    records = [record for file in read_ledger(folder / "queue/ledger") for record in file.records]
    offered = [record.key for record in records if isinstance(record, Offered)]
    assert max(Counter(offered).values()) == 1
    assert set(offered) >= {f"session/{name}" for name in rewarded}
    assert len(rewarded) >= GROUPS * SIZE * STEPS // 2
    left = Counter(item for record in records if isinstance(record, Gathered | Declined) for item in record.items)
    assert set(left.values()) == {1}
    numbers = [record.number for record in records if isinstance(record, Gathered)]
    tickets = [ticket for record in records if isinstance(record, Issued) for ticket in record.tickets]
    assert [ticket.number for ticket in tickets] == numbers == list(range(len(numbers)))
    trained = {record.step: record.numbers for record in records if isinstance(record, Step)}
    assert sorted(trained) == list(range(STEPS))
    assert max(Counter(chain.from_iterable(trained.values())).values()) == 1
    assert set(map(len, trained.values())) == {GROUPS}


def check_rows(folder: Path) -> None:
    """What was trained is what the agents sampled, turn by turn."""
    facts = ledger_facts(read_ledger(folder / "queue/ledger"))
    assert verify_queue(folder).damage == []
    step, reader = facts.trained_step(), SegmentReader(folder)
    staleness = (step - facts.rows["oldest_step"])[step >= 0]
    assert staleness.max() <= 3
    branches: Counter[int] = Counter()
    for place in np.flatnonzero(step >= 0).tolist():
        batch, row = reader.read(facts.frames[facts.frame[place]]), int(facts.rows["row"][place])
        assert batch.column("stream")[row].as_py() == OFFERED_STREAM
        origin = np.array(batch.column("token_origin")[row].as_py())
        branches[batch.column("turns")[row].as_py()] += 1
        environment = int((origin == TokenOrigin.ENVIRONMENT).sum())
        assert environment == (2 if batch.column("turns")[row].as_py() == 2 else 0)
        assert 0 < int((origin == TokenOrigin.SAMPLED).sum()) == facts.rows["sampled_tokens"][place]
    samples = {(one["number"], one["sample_index"]) for one in facts.rows[step >= 0]}
    assert len(samples) == GROUPS * SIZE * STEPS
    assert branches[2] > len(samples) // 2
    assert branches[1] >= len(samples)
