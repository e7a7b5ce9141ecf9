"""What a resume finds and says; a run that ends exactly with a pass over the data; a data set that is another one."""

import random
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from support.runs.resumed_run import ResumedRun, Shape, Trained, kill, length_of

from streamrl.buffers.ledger.frames import read_frames
from streamrl.buffers.segments.places import LEDGER_DIR
from streamrl.errors import RunFolderError
from streamrl.services.run.resumed import resumed_event, worth_telling

FOUND = {
    "step": 40,
    "steps_again": 3,
    "rows_again": 96,
    "rows_waiting": 1200,
    "groups_again": 5,
    "rollouts_again": 31,
    "data_changed": False,
    "rows_discarded": 0,
}


@pytest.mark.parametrize("passes", [1, 2, 3])
async def test_a_resume_exactly_at_the_end_of_a_pass_over_the_data_trains_the_next_one(
    passes: int, tmp_path: Path
) -> None:
    # Six prompts, three a step: every second step ends a pass, and nothing of the next one was issued.
    shape = Shape(prompts=6, groups_per_step=3, steps=2)
    run = ResumedRun(tmp_path, shape)
    for steps in range(2, 2 * passes + 2, 2):
        run.shape = replace(shape, steps=steps)
        await run.live()
    assert run.checkpoint[0] == 2 * passes
    run.shape = replace(shape, steps=2 * passes + 3)
    await run.live()
    found = run.found[-1]
    assert (found.steps_again, found.rows_waiting, found.groups_again) == (0, 0, 0)
    assert run.checkpoint[0] == 2 * passes + 3
    assert Counter(run.checkpoint[1]) == run.shape.rows()


async def test_passes_over_one_prompt_are_told_apart_after_every_resume(tmp_path: Path) -> None:
    run = ResumedRun(tmp_path, Shape(prompts=1, groups_per_step=2, steps=12))
    for step in range(0, 12, 2):
        await run.live(until_step=step)
    await run.live()
    assert Counter(run.checkpoint[1]) == run.shape.rows()


def rows_by_group(trained: tuple[Trained, ...]) -> dict[int, list[tuple[int, int]]]:
    """(sample, length) of every row, by group."""
    rows = defaultdict(list)
    for number, _, _, sample, length in trained:
        rows[number].append((sample, length))
    return {number: sorted(found) for number, found in rows.items()}


def rows_of(shape: Shape, number: int) -> list[tuple[int, int]]:
    """The same for one group, as the data of `shape` gives it."""
    place = shape.order().at(number)
    return [(sample, length_of(*place, sample)) for sample in range(shape.group_size)]


@pytest.mark.parametrize("seed", range(4))
async def test_a_changed_data_set_is_refused_unless_accepted_and_then_no_group_has_rows_of_two_prompts(
    seed: int, tmp_path: Path
) -> None:
    old, new = Shape(prompts=20, steps=30), Shape(prompts=13, steps=30, fingerprint="other")
    run = ResumedRun(tmp_path, old, random.Random(seed))
    await run.live(until_step=8)
    run.shape = new
    with pytest.raises(RunFolderError, match=r"data fingerprint 'data'.*has 'other' now.*--accept-changed-data"):
        await run.live()
    await run.live(until_step=15, accept_changed=True)
    assert run.found[-1].data_changed
    # From now on this is the run's data set: nobody has to agree again, and the old one is refused.
    run.shape = old
    with pytest.raises(RunFolderError, match=r"fingerprint 'other'.*has 'data' now"):
        await run.live()
    run.shape = new
    await run.live()
    assert not run.found[-1].data_changed
    step, trained = run.checkpoint
    assert step == 30
    groups = rows_by_group(trained)
    assert sorted(groups) == list(range(new.groups))
    kinds = Counter("old" if rows == rows_of(old, number) else "new" for number, rows in groups.items())
    assert all(rows in (rows_of(old, number), rows_of(new, number)) for number, rows in groups.items())
    assert min(kinds["old"], kinds["new"]) >= 20


@pytest.mark.parametrize("seed", range(4))
async def test_a_run_that_ended_right_after_it_took_another_data_set_mixes_no_prompts_either(
    seed: int, tmp_path: Path
) -> None:
    old, new = Shape(prompts=20, steps=30), Shape(prompts=13, steps=30, fingerprint="other")
    run = ResumedRun(tmp_path, old, random.Random(seed))
    await run.live(until_step=8)
    run.shape = new
    kill(run.open(accept_changed=True))
    newest = max((tmp_path / LEDGER_DIR).iterdir())
    data = newest.read_bytes()
    header = next(read_frames(memoryview(data), str(newest)))
    newest.write_bytes(data[: header.end] + bytes(2**12))
    await run.live()
    groups = rows_by_group(run.checkpoint[1])
    assert sorted(groups) == list(range(new.groups))
    assert all(rows in (rows_of(old, number), rows_of(new, number)) for number, rows in groups.items())


async def test_rows_of_unfinished_groups_are_counted_when_the_data_set_takes_them_away(tmp_path: Path) -> None:
    discarded = []
    for seed in range(6):
        folder = tmp_path / str(seed)
        folder.mkdir()
        run = ResumedRun(folder, Shape(prompts=20, steps=30), random.Random(seed))
        await run.live(until_step=5)
        run.shape = replace(run.shape, fingerprint="other")
        await run.live(until_step=6, accept_changed=True)
        discarded.append(run.found[-1].rows_discarded)
        await run.live()
        assert Counter(run.checkpoint[1]) == run.shape.rows()
    assert max(discarded) > 0


def test_a_resume_is_told_by_count_in_figures_and_in_words() -> None:
    event = resumed_event(40, FOUND, ["step_000050 is damaged"])
    assert event["text"] == (
        "resumed from the checkpoint of step 40: 3 later steps are trained again with the same rows, 1,200 accepted "
        "rows wait, 5 unfinished groups are generated again (31 rollouts), 1 checkpoint was passed over"
    )
    assert {name: event[name] for name in FOUND} == FOUND
    assert (event["checkpoint"], event["passed_over"]) == (40, ["step_000050 is damaged"])


def test_a_resume_without_a_checkpoint_or_with_other_data_says_so() -> None:
    one = {**FOUND, "steps_again": 1, "rows_waiting": 1, "groups_again": 1, "rollouts_again": 1}
    text = resumed_event(None, {**one, "data_changed": True, "rows_discarded": 1}, [])["text"]
    assert text == (
        "no checkpoint to resume from: 1 later step is trained again with the same rows, 1 accepted row waits, "
        "1 unfinished group is generated again (1 rollout), the data set is another one, so 1 row of unfinished groups "
        "are discarded"
    )


def test_only_a_fresh_run_has_nothing_to_tell() -> None:
    fresh = dict.fromkeys(FOUND, 0)
    assert not worth_telling(None, fresh, [])
    assert worth_telling(0, fresh, [])
    assert worth_telling(None, fresh, ["step_000000 is damaged"])
    for name in ("steps_again", "rows_waiting", "groups_again"):
        assert worth_telling(None, {**fresh, name: 1}, [])
