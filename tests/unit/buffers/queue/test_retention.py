"""Log files that go: never one that a resume could need, from whichever checkpoint; and what is left is bounded."""

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from support.runs.resumed_run import ResumedRun, Shape

from streamrl.buffers.ledger.records import Accepted, Dropped, Lost, Record, Step
from streamrl.buffers.rows.records import AcceptedRows, QueueSettings
from streamrl.buffers.segments.places import COMPLETIONS_DIR, PARTIALS_DIR, SCORES_DIR, SPARE_DIR
from streamrl.buffers.segments.retention import Retention
from streamrl.types import FrameRef

SHAPE = Shape(prompts=11, steps=40, retain="covered")


@pytest.mark.parametrize("seed", range(4))
async def test_invariant_1_no_file_goes_that_a_resume_needs_though_it_begins_at_the_older_checkpoint(
    seed: int, tmp_path: Path
) -> None:
    run = ResumedRun(tmp_path, SHAPE, random.Random(seed))
    for step in range(5, 40, 5):
        await run.live(until_step=step, learner_alone=False)
        if run.rng.random() < 0.5:
            run.damage_newest()
    await run.live()
    assert Counter(run.checkpoint[1]) == SHAPE.rows()
    # What stays is of the steps since the older checkpoint, of those that ran ahead, and of the files being written.
    (tmp_path / "all").mkdir()
    every = ResumedRun(tmp_path / "all", replace(SHAPE, retain="all"), random.Random(seed))
    await every.live()
    assert run.sizes[-1] < 0.5 * every.sizes[-1]


async def test_invariant_9_log_files_stay_below_their_budget_the_oldest_go_first(tmp_path: Path) -> None:
    budget = 150_000
    run = ResumedRun(tmp_path, replace(SHAPE, retain="all", disk_budget=budget), random.Random(1))
    run.shape = replace(run.shape, steps=60)
    await run.live()
    assert max(run.sizes) <= budget
    numbers = sorted(int(path.stem.split("-")[-1]) for path in (tmp_path / COMPLETIONS_DIR).glob("rollout-0-0-*.arrow"))
    assert numbers[0] > 0
    assert numbers == list(range(numbers[0], numbers[-1] + 1))


async def test_everything_is_kept_as_long_as_the_budget_has_room(tmp_path: Path) -> None:
    run = ResumedRun(tmp_path, replace(SHAPE, retain="all", steps=20))
    await run.live()
    names = [path.name for path in (tmp_path / COMPLETIONS_DIR).glob("*.arrow")]
    assert "rollout-0-0-0.arrow" in names
    assert run.queue.removable(20)[1] == ""


# ---- the books, record by record


def settings(**changes: object) -> QueueSettings:
    values = {
        "group_size": 1,
        "groups_per_step": 1,
        "max_staleness": 1,
        "byte_budget": 10**6,
        "rollout_bytes": 1000,
        "retain": "covered",
    }
    return QueueSettings(**{**values, **changes})


class Files:
    """A folder with log files, and the books of them."""

    def __init__(self, folder: Path, **changes: object) -> None:
        self.folder = folder
        (folder / COMPLETIONS_DIR).mkdir(parents=True)
        (folder / SCORES_DIR).mkdir(parents=True)
        self.books = Retention(folder, settings(**changes))

    def note(self, *records: Record) -> None:
        for record in records:
            self.books.note(record)

    def rows(self, file: str, *numbers: int) -> Accepted:
        """Rows of these groups, taken from a file, which is there from now on."""
        path = self.folder / COMPLETIONS_DIR / f"{file}.arrow"
        path.write_bytes(bytes(100))
        ones = np.ones(len(numbers), np.int32)
        columns = np.array(numbers, np.int64), 0 * ones, 0 * ones, 0 * ones, ones, ones, ones.astype(np.int64)
        rows = AcceptedRows(*columns, np.zeros(len(numbers), np.uint8))
        frame = FrameRef(f"{COMPLETIONS_DIR}/{file}.arrow", 0, 100, len(numbers), 1, 2)
        return Accepted("r", frame, rows.packed().tobytes())

    def going(self, oldest: int, **epochs: int) -> list[str]:
        paths = self.books.removable(oldest, epochs, 0)
        for path in paths:
            (self.folder / path).unlink()
        return [Path(path).stem for path in paths]


def test_a_file_that_its_writer_takes_back_while_it_is_looked_at_is_none(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.note(files.rows("r-0-0", 0), files.rows("r-0-1", 1), Step(0, [0]), Step(1, [1]))
    # The name is listed, and there is no file any more.
    (tmp_path / COMPLETIONS_DIR / "r-0-2.arrow").symlink_to(tmp_path / "gone")
    assert files.going(2) == ["r-0-0"]


FAR = "nodes/0123456789ab"


def far_rows(files: Files, file: str, *numbers: int) -> Accepted:
    """Rows of these groups in a file of another node, 100 bytes long."""
    record = files.rows(file, *numbers)
    frame = msgspec.structs.replace(record.frame, path=f"{FAR}/{record.frame.path}")
    return Accepted("r", frame, record.rows)


def test_a_file_of_another_node_goes_when_no_resume_can_need_it(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.note(far_rows(files, "r-0-0", 0), far_rows(files, "r-0-1", 1), Step(0, [0]), Step(1, [1]))
    (tmp_path / COMPLETIONS_DIR / "r-0-0.arrow").unlink()
    assert files.books.removable(0, {}, 0) == []
    assert files.books.removable(2, {}, 0) == [f"{FAR}/{COMPLETIONS_DIR}/r-0-0.arrow"]
    assert files.books.removable(2, {}, 0) == []


def test_each_node_has_the_budget_for_itself_and_journals_count_where_they_are(tmp_path: Path) -> None:
    files = Files(tmp_path, retain="all", disk_budget=150)
    for number in range(3):
        files.note(far_rows(files, f"r-0-{number}", number), Step(number, [number]))
    for path in (tmp_path / COMPLETIONS_DIR).iterdir():
        path.unlink()
    assert files.books.removable(3, {}, 0) == [f"{FAR}/{COMPLETIONS_DIR}/r-0-{number}.arrow" for number in (0, 1)]
    assert files.books.lack == ""
    journals = tmp_path / PARTIALS_DIR
    journals.mkdir()
    (journals / "r-0-0.arrow").write_bytes(bytes(151))
    assert files.books.removable(3, {}, 0) == []
    assert "the queue's log files take 151 bytes" in files.books.lack
    files.note(far_rows(files, "r-0-2", 9), far_rows(files, "r-0-3", 3))
    assert files.books.removable(3, {}, 0) == []
    assert "on node 0123456789ab take 200 bytes" in files.books.lack


def test_a_file_goes_when_all_its_groups_are_covered_by_every_checkpoint(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.note(files.rows("r-0-0", 0, 1), files.rows("r-0-1", 2), Step(0, [0]))
    assert files.going(1) == []
    files.note(Step(1, [1]))
    assert files.going(1) == []
    assert files.going(2) == ["r-0-0"]


def test_a_dropped_group_needs_its_rows_no_more(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.note(files.rows("r-0-0", 0), files.rows("r-0-1", 1))
    assert files.going(5) == []
    files.note(Dropped([0], "late"))
    assert files.going(0) == ["r-0-0"]


def test_the_file_that_a_writer_is_on_stays_until_it_was_replaced(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.note(files.rows("r-0-0", 0), Step(0, [0]))
    (tmp_path / COMPLETIONS_DIR / "r-0-1.arrow").write_bytes(b"rows that nobody was told of")
    assert files.going(1, r=0) == []
    assert sorted(files.going(1, r=1)) == ["r-0-0", "r-0-1"]


def test_groups_of_steps_that_are_not_trained_again_as_they_were_need_their_rows_longer(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.note(files.rows("r-0-0", 0), files.rows("r-0-1", 1), files.rows("r-0-2", 2), Step(0, [0]), Step(1, [1]))
    # The learner begins at step 0 again, and the rows of group 0 went with their node.
    files.note(Lost([0], 0, 1, 0))
    assert files.going(0) == []
    assert files.going(2) == ["r-0-0"]
    files.note(Step(3, [1]), files.rows("r-0-3", 0), Step(4, [0]))
    assert files.going(3) == []
    assert files.going(4) == ["r-0-1"]


def test_files_that_nothing_may_be_taken_from_are_told_with_the_figures(tmp_path: Path) -> None:
    files = Files(tmp_path, retain="all", disk_budget=250)
    files.note(files.rows("r-0-0", 0), files.rows("r-0-1", 1))
    assert files.going(9) == []
    assert files.books.lack == ""
    files.note(files.rows("r-0-2", 2))
    assert files.going(9) == []
    assert "take 300 bytes, queue.disk_budget is 250" in files.books.lack
    files.note(Step(0, [0]), Step(1, [1]))
    assert files.going(2) == ["r-0-0"]
    assert files.books.lack == ""


def spare_file(folder: Path, size: int) -> None:
    (folder / SPARE_DIR).mkdir()
    (folder / SPARE_DIR / "x.free").write_bytes(bytes(size))


@pytest.mark.parametrize("retain", ["all", "covered"])
def test_files_kept_to_be_written_over_go_where_the_budget_has_no_room_for_them(retain: str, tmp_path: Path) -> None:
    files = Files(tmp_path, retain=retain, disk_budget=250)
    spare_file(tmp_path, 50)
    files.note(files.rows("r-0-0", 0), files.rows("r-0-1", 1))
    assert files.going(9) == []
    files.note(files.rows("r-0-2", 2))
    assert files.going(9) == ["x"]
    assert "take 300 bytes" in files.books.lack


def test_what_comes_is_written_over_spare_files_first(tmp_path: Path) -> None:
    files = Files(tmp_path, retain="all", disk_budget=350)
    spare_file(tmp_path, 100)
    files.note(*(files.rows(f"r-0-{number}", number) for number in range(3)), Step(0, [0]), Step(1, [1]))
    assert files.books.removable(9, {}, 50) == [f"{COMPLETIONS_DIR}/r-0-0.arrow"]
    (tmp_path / COMPLETIONS_DIR / "r-0-0.arrow").unlink()
    assert files.books.removable(9, {}, 150) == []
    assert files.books.removable(9, {}, 151) == [f"{COMPLETIONS_DIR}/r-0-1.arrow"]


def test_a_file_that_is_none_of_ours_stays(tmp_path: Path) -> None:
    files = Files(tmp_path)
    (tmp_path / COMPLETIONS_DIR / "notes.arrow").write_bytes(b"somebody's")
    assert files.going(10**6, r=9) == []
