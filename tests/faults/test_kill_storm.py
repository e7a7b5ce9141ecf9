"""R1: any process, killed by `kill -9` at any moment, again and again. Nothing accepted is lost, nothing trained twice,
and the run completes.

`KILLS` kills for each kind of process (default 20), in a run of its own for each kind, since the same part again and
again is the hardest. In the short form, of one kill each, one run has them all, in random order. A failing run prints
its seed; `SEED` replays the choices.
The book is kept here, from the run's events and from the ledger's records, counted anew; none of the queue's own counts
is believed. The scripted engine draws a rollout's length from its seed alone, so the lengths that were trained must be
those of a run that nobody disturbed, rollout by rollout: long ones are the first to be lost.
"""

import os
import secrets
from contextlib import closing, nullcontext
from pathlib import Path

import numpy as np
import pytest
from support.gateway.guest_load import guests_of
from support.queue.ledger_book import Book
from support.runs.live_run import live_run
from support.runs.storm import KINDS, Storm

pytestmark = pytest.mark.ray

KILLS = int(os.environ.get("KILLS", "20"))
SEED = int(os.environ.get("SEED", secrets.randbits(32)))
GROUPS, SIZE, STALENESS = 4, 4, 2
OVERRIDES = (
    *(
        "--rollout.engine",
        "scripted",
        "--rollout.scripted.heavy_tail",
        "0.8",
        "--rollout.sampling.max_new_tokens",
        "24",
    ),
    *("--rollout.group_size", str(SIZE), "--learner.groups_per_step", str(GROUPS)),
    *("--learner.max_staleness", str(STALENESS), "--eval.every", "100000", "--checkpoint.every", "5"),
    *("--observe.trace", "false", "--deadlines.stop_s", "10"),
)
STEPS_BETWEEN = (2, 9)

STORMS = {"one of each": tuple(KINDS)} if KILLS == 1 else {kind: (kind,) * KILLS for kind in KINDS}
"""What is killed in each run."""
MORE = ("--gateway.enabled", "true")
"""What a run has of which a gateway is killed."""
WITHOUT_GATEWAY = 300
"""Steps that the run makes, at most, while another gateway starts: it waits for none."""

STEPS = KILLS * STEPS_BETWEEN[1] + 6


@pytest.fixture(scope="module")
def calm(user_folder: Path, streamrl_path: Path) -> dict[tuple[int, int], int]:
    """Sampled tokens of each trained rollout of a run that nobody disturbed, by group and sample."""
    with live_run(user_folder, streamrl_path, "calm", *OVERRIDES, "--learner.steps", str(STEPS)) as run:
        code, err = run.end()
    assert code == 0, err
    book = Book(run.folder, SIZE)
    return {key: book.lengths[key] for key in book.wanted()}


@pytest.mark.timeout(300 + 90 * max(map(len, STORMS.values())))
@pytest.mark.parametrize("storm_name", STORMS)
def test_invariants_1_and_2_hold_when_processes_are_killed_again_and_again(
    storm_name: str, calm: dict[tuple[int, int], int], user_folder: Path, streamrl_path: Path
) -> None:
    rng = np.random.default_rng([SEED, list(STORMS).index(storm_name)])
    print(f"SEED={SEED} KILLS={KILLS} storm={storm_name}")
    kinds = rng.permutation(STORMS[storm_name]).tolist()
    steps = len(kinds) * STEPS_BETWEEN[1] + 6 + WITHOUT_GATEWAY * kinds.count("gateway")
    with_gateway = "gateway" in kinds
    told = (*OVERRIDES, *(MORE if with_gateway else ()), "--learner.steps", str(steps))
    storm = Storm(user_folder, streamrl_path, f"storm-{storm_name.replace(' ', '-')}", told)
    with closing(storm), guests_of(lambda: storm.run.folder) if with_gateway else nullcontext():
        for kind in kinds:
            storm.let_serve(kind, rng)
            storm.go_on(int(rng.integers(*STEPS_BETWEEN)))
            storm.kill(kind, rng)
        storm.finish()
    book = Book(storm.run.folder, SIZE)
    book.check(steps, groups_per_step=GROUPS, staleness=STALENESS)
    assert {key: book.lengths[key] for key in calm if key in book.lengths} == calm
