"""R14: 50 resumes in one run, at random moments. Each prompt is trained exactly once in each pass over the data, and
the long rollouts, which are the ones in flight when a run ends, are as many as in a run that was never interrupted.

`SEED` replays the moments of a run that failed. Learners that begin again alone: the short form takes 5 of 50 runs.
"""

import random
from collections import Counter
from pathlib import Path

import pytest
from support.faults.fault_scale import SEED, scaled
from support.runs.resumed_run import LONGEST, ResumedRun, Shape

RESUMES = 50


@pytest.mark.parametrize("prompts", [7, 30])
async def test_invariant_2_fifty_resumes_train_each_prompt_once_a_pass_and_favour_no_length(
    prompts: int, tmp_path: Path
) -> None:
    shape = Shape(prompts=prompts)
    run = ResumedRun(tmp_path, shape, random.Random(f"{SEED} {prompts}"))
    for number in range(RESUMES):
        await run.live(until_step=number * shape.steps // (RESUMES + 1))
        assert run.checkpoint[0] < shape.steps, f"SEED={SEED}: the run was over after {number} resumes"
    await run.live()
    assert run.life == RESUMES
    step, trained = run.checkpoint
    assert step == shape.steps
    assert Counter(trained) == shape.rows(), f"SEED={SEED}"
    # It was no idle exercise: much was in flight, much was trained again, and the long ones more often than others.
    assert sum(found.groups_again for found in run.found) > RESUMES, f"SEED={SEED}"
    assert sum(found.steps_again for found in run.found) > RESUMES // 10, f"SEED={SEED}"
    assert max(length for *_, length in trained) == LONGEST


async def test_invariant_2_learners_that_begin_again_alone_train_each_prompt_once_a_pass(tmp_path: Path) -> None:
    shape = Shape(prompts=11, steps=40)
    for number in range(max(5, scaled(RESUMES))):
        folder = tmp_path / str(number)
        folder.mkdir()
        run = ResumedRun(folder, shape, random.Random(f"{SEED} {number}"))
        await run.live(until_step=run.rng.randrange(shape.steps), learner_alone=True)
        assert Counter(run.checkpoint[1]) == shape.rows(), f"SEED={SEED}: run {number}"
