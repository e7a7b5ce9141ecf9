"""A prompt whose reward always raises, in a real run that is stopped and resumed: tried three times, and no more."""

import json
import signal
from collections import Counter
from pathlib import Path

import pytest
from support.runs.live_run import live_run

from streamrl.buffers.ledger.ledger import read_ledger
from streamrl.buffers.ledger.records import Issued, Quarantined, Record
from streamrl.types import Ticket

pytestmark = pytest.mark.ray

ITEMS, BAD, STEPS = 40, 7, 40
FEW = f'''
"""Forty sums, one of which no reward can score."""

from streamrl.tasks.base import Prompt


class Few:
    name, num_train, num_held_out = "few", {ITEMS}, 4

    def __init__(self, held_out):
        pass

    def train(self, index):
        return Prompt(f"few-{{index}}", f"{{index}}+1=", '{{"item":"%d"}}' % index)

    def held_out(self, index):
        return Prompt(f"held-out-{{index}}", f"{{index}}*2=", '{{"item":"0"}}')

    def demonstration(self, prompt):
        return "1"

    def fingerprint(self):
        return "few"


def reward(completion, item, **_):
    if item == "{BAD}":
        raise LookupError("nobody knows the answer")
    return sum(character in "01234" for character in completion) / 6
'''
OPTIONS = (
    *("--task.name", "few:Few", "--reward.function", "few:reward", "--reward.max_failed", "1.0"),
    *("--rollout.engine", "scripted", "--eval.every", "1000", "--learner.steps", str(STEPS)),
    # Slow enough that a stop comes before the third turn of the bad one, which is issued with step 10.
    *("--rollout.scripted.step_s", "0.02"),
)


def records(folder: Path) -> list[Record]:
    return [record for file in read_ledger(folder / "queue/ledger") for record in file.records]


def first_tickets(folder: Path) -> list[Ticket]:
    """Of each group."""
    tickets = [ticket for one in records(folder) if isinstance(one, Issued) for ticket in one.tickets]
    return list({ticket.number: ticket for ticket in reversed(tickets)}.values())[::-1]


@pytest.mark.long
def test_a_prompt_that_always_fails_is_tried_three_times_over_a_stop_and_a_resume_and_is_told_of_once(
    user_folder: Path, streamrl_path: Path, streamrl
) -> None:
    (user_folder / "few.py").write_text(FEW)
    with live_run(user_folder, streamrl_path, "few", *OPTIONS) as run:
        run.until_step(4)
        run.process.send_signal(signal.SIGINT)
        code, err = run.end()
    assert code == 130, err
    before = sum(ticket.data_index == BAD for ticket in first_tickets(run.folder))
    assert 0 < before < 3, "it was stopped in the middle"
    assert not [text for text in run.notices() if "quarantined" in text]
    with live_run(user_folder, streamrl_path, "few", *OPTIONS) as run:
        assert run.read_until(lambda event: "is quarantined" in event.get("text", ""))
        status = streamrl("status", "runs/few", "--json")
        code, err = run.end()
    assert code == 0, err
    assert json.loads(status.output)["queue"]["prompts_quarantined"] == 1
    (told,) = [text for text in run.notices() if "is quarantined" in text]
    assert all(part in told for part in (f"few-{BAD}", "3 groups", "LookupError: nobody knows the answer"))
    _check_turns(first_tickets(run.folder))
    (one,) = [record for record in records(run.folder) if isinstance(record, Quarantined)]
    assert (one.item, one.failures) == (BAD, 3)
    assert run.steps()[-1]["queue/quarantined"] == 1
    summary = json.loads((run.folder / "summary.json").read_text())
    assert (summary["steps"], summary["prompts_quarantined"]) == (STEPS, 1)
    assert summary["discards_by_reason"] == {"reward_failed": 3}
    queue = json.loads(streamrl("queue", "runs/few", "--json").output)["queue"]
    assert queue["prompts_quarantined"] == 1
    assert [one["item"] for one in queue["quarantined"]] == [BAD]
    assert "LookupError" in streamrl("queue", "runs/few").output
    asked = "select data_index, reason from ledger where kind = 'quarantined'"
    assert "nobody knows the answer" in streamrl("sql", "runs/few", asked).output


def _check_turns(tickets: list[Ticket]) -> None:
    """Each prompt had its turn once in each data pass, but for the bad one after its three failures."""
    turns = Counter((ticket.data_pass, ticket.data_index) for ticket in tickets)
    assert set(turns.values()) == {1}
    last = max(data_pass for data_pass, _ in turns)
    assert last >= 4
    assert [data_pass for data_pass, item in turns if item == BAD] == [0, 1, 2]
    whole = {(data_pass, item) for data_pass in range(last) for item in range(ITEMS)}
    assert whole - set(turns) == {(data_pass, BAD) for data_pass in range(3, last)}
    assert sum(ticket.passed_over for ticket in tickets) in (last - 3, last - 2)
