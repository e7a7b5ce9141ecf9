"""Prompts that a client submits to a live run: each is trained once, whatever is killed meanwhile, and told of."""

import asyncio
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.runs.live_run import LiveRun, live_run

import streamrl
from streamrl.buffers.ledger.ledger import read_ledger
from streamrl.buffers.ledger.records import Issued, Step, Submitted
from streamrl.client import Result

pytestmark = pytest.mark.ray

GROUPS, SIZE, STEPS = 4, 4, 12
PROMPTS = GROUPS * STEPS
ONLY_CLIENTS = (
    *("--rollout.engine", "scripted", "--rollout.group_size", str(SIZE), "--learner.groups_per_step", str(GROUPS)),
    *("--learner.steps", str(STEPS), "--eval.every", "100000", "--checkpoint.every", "3"),
    *("--gateway.enabled", "true", "--gateway.stream_weights", "{ train = 0.0 }", "--gateway.max_prompts", "16"),
)


def submit_all(folder: Path) -> list[Result]:
    async def submitting() -> list[Result]:
        async with streamrl.connect(folder) as client:
            asks = ({"key": f"k{number}", "prompt": f"{number}+1="} for number in range(PROMPTS))
            return [one async for one in client.stream(asks, ahead=PROMPTS) if isinstance(one, Result)]

    return asyncio.run(submitting())


def kill(run: LiveRun, name: str) -> None:
    run.actors(name)[0].send_signal(signal.SIGKILL)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_invariants_1_and_2_hold_for_submitted_prompts_while_parts_are_killed(
    user_folder: Path, streamrl_path: Path
) -> None:
    with (
        ThreadPoolExecutor(1) as beside,
        live_run(user_folder, streamrl_path, "prompts", *ONLY_CLIENTS) as run,
    ):
        assert run.read_until(lambda event: event["kind"] == "gateway"), run.end()
        submitting = beside.submit(submit_all, run.folder)
        for step, part in ((2, "GatewayActor"), (4, "RolloutReplica"), (6, "QueueActor")):
            run.until_step(step)
            kill(run, part)
        code, err = run.end()
        assert code == 0, err
        results = submitting.result(timeout=60)
    assert sorted(one.key for one in results) == sorted(f"k{number}" for number in range(PROMPTS))
    told = [one for one in results if one.rollouts is not None]
    assert {len(one.rollouts or []) for one in told} == {SIZE}
    assert len(told) > PROMPTS // 2
    check_books(run.folder, {one.key: one.group for one in results})


def check_books(folder: Path, groups: dict[str, int]) -> None:
    """What the ledger's own records say."""
    records = [record for file in read_ledger(folder / "queue/ledger") for record in file.records]
    keys = [one.key for record in records if isinstance(record, Submitted) for one in record.asked]
    assert Counter(keys) == Counter({f"k{number}": 1 for number in range(PROMPTS)})
    issued = {ticket.number: ticket for record in records if isinstance(record, Issued) for ticket in record.tickets}
    assert all(ticket.submitted for ticket in issued.values())
    assert {keys[ticket.data_index]: number for number, ticket in issued.items()} == groups
    trained = {record.step: record.numbers for record in records if isinstance(record, Step)}
    assert sorted(number for numbers in trained.values() for number in numbers) == list(range(PROMPTS))
