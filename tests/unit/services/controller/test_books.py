"""What the controller's book says of a run that is replaced in the middle."""

from pathlib import Path

from support.learner.probe_learner import open_run

from streamrl.config import Config
from streamrl.services.controller.books import RunBook


def step(number: int) -> dict[str, float]:
    return {"step": number, "time/step": 1.0, "time/wait": 0.5, "staleness/max": 0, "staleness/mean": 0.0}


def test_what_the_death_of_the_learner_costs_is_the_steps_after_its_newest_checkpoint(tmp_path: Path) -> None:
    book = RunBook(open_run(Config(), tmp_path), Config())
    costs = [book.steps_to_repeat()]
    for number in range(1, 6):
        book.report("step", step(number))
    costs.append(book.steps_to_repeat())
    book.report("checkpoint", {"step": 4, "seconds": 0.1, "bytes": 7})
    costs.append(book.steps_to_repeat())
    book.resume(4)
    costs.append(book.steps_to_repeat())
    for number in range(5, 8):
        book.report("step", step(number))
    costs.append(book.steps_to_repeat())
    book.close()
    assert costs == [
        "trained again: 0 steps after 0",
        "trained again: 5 steps after 0",
        "trained again: 1 step after 4",
        "trained again: 0 steps after 4",
        "trained again: 3 steps after 4",
    ]
