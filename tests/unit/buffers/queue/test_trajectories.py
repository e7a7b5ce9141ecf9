"""Trajectories of clients in the replay queue: each is trained once, or declined with a reason, whatever is killed."""

import asyncio
import random
import secrets
import shutil
from collections import Counter
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from support.queue.offered_trajectories import Offering, trajectory, turn
from support.queue.queue_parts import Parts, both, groups_of, kill, open_queue
from support.queue.queue_parts import turn as let_run

from streamrl.buffers.index.submitted.offered import OfferedTrajectories, OfferState, Standing, num_bytes
from streamrl.buffers.index.submitted.submissions import SubmissionState
from streamrl.buffers.ledger.facts import ledger_facts
from streamrl.buffers.ledger.frames import read_frames
from streamrl.buffers.ledger.ledger import read_ledger
from streamrl.buffers.ledger.records import Accepted, Declined, Gathered, Issued, Offered, Scored, Step, Writer
from streamrl.buffers.ledger.table import ledger_table
from streamrl.buffers.queue.gathering import TOO_MANY_WAIT, TOO_STALE, UNKNOWN_VERSION, Objection
from streamrl.buffers.queue.replay_queue import ReplayQueue
from streamrl.buffers.recovery.row_tables import logged_completions, logged_scores, rollouts_table
from streamrl.buffers.recovery.verify import verify_queue
from streamrl.buffers.rows.gather import rollout_rows
from streamrl.buffers.segments.places import LEDGER_DIR
from streamrl.buffers.segments.reader import SegmentReader
from streamrl.config.schema.streams import OFFERED_STREAM
from streamrl.conversations.branches import Branch
from streamrl.errors import ComponentError, DataError, FencedError
from streamrl.services.queue.trajectory_log import WRITER
from streamrl.types import FrameRef, Version

ONE_A_STEP = {"groups_per_step": 1}


def records_of(run: Path) -> list:
    return [record for file in read_ledger(run / LEDGER_DIR) for record in file.records]


def state_of(standing: Standing | Objection) -> str:
    return standing.state.value if isinstance(standing, Standing) else standing.code


def files_in(run: Path, pattern: str) -> list[Path]:
    return sorted(run.glob(pattern))


def cut_copy(run: Path, copy: Path, end: int) -> None:
    """A copy of the run with the first `end` bytes of its ledger, as a process that is killed leaves it."""
    shutil.copytree(run, copy)
    (path,) = files_in(copy, f"{LEDGER_DIR}/*.log")
    data = path.read_bytes()
    path.write_bytes(data[:end] + bytes(len(data) - end))


def one_by_one(queue: ReplayQueue) -> None:
    """Have the ledger commit what is appended each by itself, as a fast disk does now and then."""
    committer = queue._journal._ledger._committer
    together = committer._commit
    committer._commit = lambda items: [result for item in items for result in together([item])]


async def train(queue: ReplayQueue, step: int) -> list[int]:
    lease = await queue.lease(step)
    assert lease is not None
    await queue.commit(step)
    return groups_of(lease)


def test_of_a_name_those_that_came_first_are_gathered_first() -> None:
    frame = FrameRef("completions.arrow", 0, 100, 1, 7, 9)
    offered = OfferedTrajectories()
    for key in ("a0", "b0", "a1", "b1", "a2"):
        offered.add(Offered(key[0], key, 0, frame, b"", frame, b"", 1.0, []))
    assert offered.full(2) == [[0, 2], [1, 3]]
    assert offered.full(3) == [[0, 2, 4]]
    offered.gathered([0, 2], 5)
    offered.declined([3], "old")
    assert offered.full(1) == [[1], [4]]
    assert [offered.standing(item).waiting for item in range(5)] == [1] * 5
    assert [(item, told.key) for item, told in offered.waiting()] == [(1, "b0"), (4, "a2")]
    assert (offered.arrived("a"), offered.arrived("b"), offered.arrived("c")) == (3, 2, 0)
    assert (offered.num_waiting, offered.waiting_bytes) == (2, 400)
    with pytest.raises(DataError, match="trajectory 3 does not wait"):
        offered.told(3)


async def test_trajectories_of_one_name_become_a_group_and_are_trained(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, **ONE_A_STEP)
    offering = Offering(queue, tmp_path)
    first = await offering.offer("a", reward=1.0)
    other = await offering.offer("x", group="h")
    assert (state_of(first), first.waiting, state_of(other)) == ("waiting", 1, "waiting")
    second = await offering.offer("b", reward=0.25)
    assert (state_of(second), second.group) == ("gathered", 0)
    lease = await queue.lease(0)
    assert lease is not None
    assert (lease.group.tolist(), lease.sample_index.tolist(), lease.rewards.tolist()) == ([0, 0], [0, 1], [1.0, 0.25])
    assert (lease.num_tokens.tolist(), lease.sampled_tokens.tolist()) == ([5, 5], [3, 3])
    await queue.commit(0)
    counts = queue.counts()
    assert (counts.groups_trained, counts.rows_trained, counts.tokens_trained) == (1, 2, 6)
    assert (counts.trajectories_offered, counts.trajectories_waiting) == (3, 1)
    queue.close()


async def test_components_of_a_reward_reach_the_learner_and_outlive_the_queue(tmp_path: Path) -> None:
    names = ("style", "right")
    settings = {"components": names, **ONE_A_STEP}
    queue = open_queue(tmp_path, **settings)
    offering = Offering(queue, tmp_path, components=names)
    await offering.offer("a", components={"right": 1.0, "style": 0.25})
    kill(queue)
    queue = open_queue(tmp_path, **settings)
    await Offering(queue, tmp_path, components=names).offer("b", components={"right": 0.0, "style": 0.5})
    for life in range(2):
        lease = await queue.lease(0)
        assert lease is not None
        assert lease.components.tolist() == [[0.25, 1.0], [0.5, 0.0]], life
        kill(queue)
        queue = open_queue(tmp_path, **settings)
    queue.close()


async def test_a_trajectory_wakes_a_learner_that_waits(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, **ONE_A_STEP)
    offering = Offering(queue, tmp_path)
    await offering.offer("a")
    leasing = asyncio.ensure_future(queue.lease(0))
    await let_run()
    assert not leasing.done()
    await offering.offer("b")
    lease = await leasing
    assert lease is not None
    assert groups_of(lease) == [0]
    queue.close()


async def test_turns_and_forks_reach_the_learner_token_for_token(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, group_size=1, max_staleness=5, **ONE_A_STEP)
    queue._journal.write(Step(0, []), Step(1, []))  # versions 0.1 and 0.2 are out
    turns = [
        turn(prompt=[1, 2], ids=[3, 4], step=1),
        turn(prompt=[9], ids=[5], step=1),
        turn(prompt=[8], ids=[6], step=2),
    ]
    fork = Branch([turn(prompt=[1, 2, 7], ids=[4], step=2)], "length")
    await Offering(queue, tmp_path).offer("a", branches=[Branch(turns, "stop"), fork], reward=0.5)
    lease = await queue.lease(0)
    assert lease is not None
    assert (lease.branch.tolist(), lease.sample_index.tolist()) == ([0, 1], [0, 0])
    assert (lease.truncated.tolist(), lease.oldest_step.tolist()) == ([False, True], [1, 2])
    batches = [SegmentReader(tmp_path).read(frame) for frame in lease.frames]
    rows = rollout_rows(
        batches, lease.frame_index, lease.row, lease.group, lease.sample_index, lease.rewards, lease.valid
    )
    assert rows.token_ids.tolist() == [1, 2, 3, 4, 9, 5, 8, 6, 1, 2, 7, 4]
    assert rows.token_origin.tolist() == [0, 0, 1, 1, 2, 1, 2, 1, 0, 0, 0, 1]
    assert rows.token_steps.tolist() == [-1, -1, 1, 1, -1, 1, -1, 2, -1, -1, -1, 2]
    assert np.array_equal(rows.rollout_logprobs, np.where(rows.token_origin == 1, np.float32(-0.5), 0))
    assert rows.rewards.tolist() == [0.5, 0.5]
    assert batches[0].column("turns").to_pylist() == [3, 1]
    queue.close()


async def test_invariant_1_a_trajectory_is_durable_when_it_is_acknowledged(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    offering = Offering(queue, tmp_path)
    await offering.offer("first")
    queue._journal._ledger._committer._interval_s = 3600.0
    told = await offering.log.write(trajectory("a"), 1)
    offered = asyncio.ensure_future(queue.trajectories.offer(WRITER, 0, told, [Version(0, 0)]))
    await let_run()
    assert not offered.done()
    queue.close()
    assert state_of(await offered) == "gathered"
    assert [record.key for record in records_of(tmp_path) if isinstance(record, Offered)] == ["first", "a"]


async def test_a_key_is_one_trajectory_however_often_it_is_offered(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    offering = Offering(queue, tmp_path)
    told = await offering.log.write(trajectory("a"), 0)
    both_at_once = [queue.trajectories.offer(WRITER, 0, told, [Version(0, 0)]) for _ in range(2)]
    assert [one.item for one in await asyncio.gather(*both_at_once)] == [0, 0]
    await offering.offer("b")
    kill(queue)
    again = open_queue(tmp_path)
    standing = await Offering(again, tmp_path).offer("a")
    assert (standing.item, state_of(standing), standing.group, standing.digest) == (0, "gathered", 0, told.digest)
    assert again.counts().trajectories_offered == 2
    again.close()


async def test_a_gateway_that_was_replaced_is_fenced(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    old = Offering(queue, tmp_path)
    await old.offer("a")
    await Offering(queue, tmp_path).offer("b", group="h")
    with pytest.raises(FencedError):
        await old.offer("c")
    assert queue.counts().trajectories_offered == 2
    queue.close()
    with pytest.raises(ComponentError):
        await Offering(queue, tmp_path).offer("d")


async def test_what_is_too_old_is_refused_with_the_numbers(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, **ONE_A_STEP)
    parts = Parts(queue, tmp_path)
    for step in range(2):
        for ticket in await queue.take("r", 0, Version(0, step), 1):
            await parts.accept(both(ticket.number), oldest=step)
        await parts.score_waiting()
        await train(queue, step)
    offering = Offering(queue, tmp_path)
    refused = await offering.offer("a", step=0)
    assert isinstance(refused, Objection)
    assert refused.code == TOO_STALE
    assert "of step 0, and the learner is at step 2: 2 steps, and 1 are allowed" in refused.text
    assert state_of(await offering.offer("b", step=1)) == "waiting"
    assert queue.counts().trajectories_offered == 1
    queue.close()


async def test_one_that_grows_too_old_while_it_waits_is_declined_and_said_so(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, **ONE_A_STEP)
    offering = Offering(queue, tmp_path)
    await offering.offer("old", step=0)
    parts = Parts(queue, tmp_path)
    for step in range(2):
        for ticket in await queue.take("r", 0, Version(0, step), 1):
            await parts.accept(both(ticket.number), oldest=step)
        await parts.score_waiting()
        await train(queue, step)
    assert state_of(await offering.offer("new", step=1)) == "waiting"
    for instance in (queue, None):
        if instance is None:
            kill(queue)
            queue = open_queue(tmp_path, **ONE_A_STEP)
        standing = await queue.trajectories.standing("old")
        assert (standing.state, standing.reason) == (OfferState.DECLINED, TOO_STALE)
        assert queue.counts().trajectories_waiting == 1
    assert [record.reason for record in records_of(tmp_path) if isinstance(record, Declined)] == [TOO_STALE]
    queue.close()


@pytest.mark.parametrize(("incarnation", "step"), [(0, 1), (1, 0), (7, 0)])
async def test_a_version_that_was_never_published_is_refused(incarnation: int, step: int, tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    refused = queue.trajectories.place("g", [Version(0, 0), Version(incarnation, step)])
    assert isinstance(refused, Objection)
    assert refused.code == UNKNOWN_VERSION
    assert f"{incarnation}.{step}" in refused.text
    assert queue.trajectories.place("g", [Version(0, 0)]) == 0
    queue.close()


async def test_each_incarnation_has_the_versions_from_its_first_step_on(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, max_staleness=9, group_size=1, **ONE_A_STEP)
    offering = Offering(queue, tmp_path)
    for step in range(3):
        await offering.offer(f"{step}", step=step)
        await train(queue, step)
    await queue.resume_from(2)
    known = {
        (incarnation, step): not isinstance(queue.trajectories.place("g", [Version(incarnation, step)]), Objection)
        for incarnation in range(3)
        for step in range(5)
    }
    assert {version for version, is_known in known.items() if is_known} == {(0, 0), (0, 1), (0, 2), (0, 3), (1, 2)}
    await queue.lease(2)
    assert queue.trajectories.place("g", [Version(1, 3)]) == 3  # its step is under way
    queue.close()


async def test_a_group_waits_while_those_that_began_before_it_take_every_place_in_time(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, max_staleness=1, **ONE_A_STEP)
    tickets = await queue.take("r", 0, Version(0, 0), 10)
    assert len(tickets) == 2  # all that can be trained by step 1
    offering = Offering(queue, tmp_path)
    assert [state_of(await offering.offer(key)) for key in "ab"] == ["waiting", "waiting"]
    leasing = asyncio.ensure_future(queue.lease(0))
    await queue.drop([0], "gave up")
    await let_run()
    assert (await queue.trajectories.standing("a")).group == 2
    lease = await leasing
    assert lease is not None
    assert groups_of(lease) == [2]
    queue.close()


async def test_replicas_leave_room_for_those_who_come_unasked_by_the_lead(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, max_staleness=2, lead=1.0, **ONE_A_STEP)
    assert len(await queue.take("r", 0, Version(0, 0), 10)) == 1
    offering = Offering(queue, tmp_path)
    assert [state_of(await offering.offer(key)) for key in "abcdef"] == ["waiting", "gathered"] * 2 + ["waiting"] * 2
    queue.close()


async def test_a_group_waits_for_its_bytes_until_a_checkpoint_lets_some_go(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, byte_budget=5000, rollout_bytes=1200, max_staleness=9, **ONE_A_STEP)
    offering = Offering(queue, tmp_path)
    made = []
    for number in range(4):
        made += [state_of(await offering.offer(f"{number}{one}", group=f"g{number}")) for one in "ab"]
    assert made[-1] == "waiting"
    assert queue.counts().bytes_used <= 5000
    done = made.count("gathered")
    for step in range(done):
        await train(queue, step)
    leasing = asyncio.ensure_future(queue.lease(done))
    await let_run()
    assert not leasing.done()
    await queue.covered(done)
    assert await leasing is not None
    queue.close()


async def test_what_waits_is_bounded_in_bytes(tmp_path: Path) -> None:
    measured = tmp_path / "measured"
    measured.mkdir()
    other = open_queue(measured)
    one = await Offering(other, measured).log.write(trajectory("0"), 0)
    other.close()
    queue = open_queue(tmp_path, submitted_bytes=2 * num_bytes(one) - 1)
    offering = Offering(queue, tmp_path)
    states = [state_of(await offering.offer(f"{n}", group=f"g{n}")) for n in range(5)]
    assert states == ["waiting"] + [TOO_MANY_WAIT] * 4
    assert state_of(await offering.offer("0")) == "waiting"
    assert queue.counts().trajectories_waiting == 1
    queue.close()


async def test_no_prompt_of_the_task_is_used_up_and_no_stream_pays(tmp_path: Path) -> None:
    for life in ("whole", "killed"):
        run = tmp_path / life
        run.mkdir()
        queue = open_queue(run, max_staleness=3)
        offering = Offering(queue, run)
        for number in range(6):
            await offering.offer(f"{number}")
        if life == "killed":
            kill(queue)
            queue = open_queue(run, max_staleness=3)
        tickets = await queue.take("r", 0, Version(0, 0), 3)
        assert [(one.number, one.data_index, one.submitted) for one in tickets] == [
            (3, 0, False),
            (4, 1, False),
            (5, 2, False),
        ]
        assert queue._index._issuing._sources._shares._now == 2.0
        queue.close()


async def test_a_group_of_trajectories_ends_in_the_books_of_submissions(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, **ONE_A_STEP)
    offering = Offering(queue, tmp_path)
    await offering.offer("a")
    await offering.offer("b")
    (outcome,) = await queue.submitted.ended([0])
    assert (outcome.state, outcome.group) == (SubmissionState.FINISHED, 0)
    await train(queue, 0)
    await queue.covered(1)
    assert queue.submitted.prompts([0]) == [None]
    queue.close()


async def test_invariant_2_no_cut_of_the_ledger_leaves_half_a_group(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    queue = open_queue(run, **ONE_A_STEP)
    one_by_one(queue)
    offering = Offering(queue, run)
    for key in "abc":
        await offering.offer(key)
    await train(queue, 0)
    kill(queue)
    (path,) = files_in(run, f"{LEDGER_DIR}/*.log")
    ends = [frame.end for frame in read_frames(memoryview(path.read_bytes()), "ledger")]
    seen = Counter()
    for life, end in enumerate(ends[1:]):
        copy = tmp_path / f"cut-{life}"
        cut_copy(run, copy, end)
        if not any(isinstance(record, Writer) for record in records_of(copy)):
            continue  # no file of the writer was there yet
        again = open_queue(copy, **ONE_A_STEP)
        counts = again.counts()
        assert (counts.groups_running, counts.groups_orphaned) == (0, 0)
        assert counts.groups_issued * 2 + counts.trajectories_waiting == counts.trajectories_offered
        seen[counts.trajectories_offered, counts.groups_issued] += 1
        fresh = Offering(again, copy)
        for key in "abc":
            await fresh.offer(key)
        assert await train(again, 0) == [0]
        assert again.counts().trajectories_waiting == 1
        again.close()
    assert set(seen) == {(0, 0), (1, 0), (2, 1), (3, 1)} | ({(2, 0)} & set(seen))


async def test_steps_after_a_checkpoint_take_the_same_trajectories_again(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, max_staleness=9, **ONE_A_STEP)
    offering = Offering(queue, tmp_path)
    for number in range(6):
        await offering.offer(f"{number}", reward=float(number))
    first = []
    for step in range(2):
        lease = await queue.lease(step)
        first.append((lease.group.tolist(), lease.rewards.tolist()))
        await queue.commit(step)
    kill(queue)
    again = open_queue(tmp_path, resume_step=1, max_staleness=9, **ONE_A_STEP)
    lease = await again.lease(1)
    assert (lease.group.tolist(), lease.rewards.tolist()) == first[1]
    await again.commit(1)
    assert await train(again, 2) == [2]
    counts = again.counts()
    assert (counts.groups_trained, counts.rows_trained, counts.groups_ready) == (3, 6, 0)
    again.close()


async def test_files_stay_while_a_trajectory_in_them_waits(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, max_staleness=9, retain="covered", **ONE_A_STEP)
    await Offering(queue, tmp_path).offer("a")
    second = Offering(queue, tmp_path)  # under the next epoch: the first one's files are left
    await second.offer("x", group="h")
    assert queue.removable(0)[0] == []
    await second.offer("b")
    await Offering(queue, tmp_path).offer("y", group="i")
    await train(queue, 0)
    await queue.covered(1)
    going = queue.removable(1)[0]
    assert sorted(going) == [f"queue/{log}/trajectories-0-0.arrow" for log in ("completions", "scores")]
    queue.close()
    for life in range(2):
        again = open_queue(tmp_path, resume_step=1, max_staleness=9, retain="covered", **ONE_A_STEP)
        assert sorted(again.removable(1)[0]) == sorted(going), life
        again.close()


async def test_verify_knows_the_frames_of_those_that_wait(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    offering = Offering(queue, tmp_path)
    await offering.offer("a")
    queue.close()
    offering.log.close()
    checked = verify_queue(tmp_path)
    assert (checked.damage, checked.acknowledged_frames) == ([], 2)
    (path,) = files_in(tmp_path, "queue/completions/*.arrow")
    path.unlink()
    path.with_suffix(".idx").unlink()
    (damage,) = verify_queue(tmp_path).damage
    assert damage.acknowledged
    assert "a run that goes on needs rows in it" in damage.what


async def test_the_table_of_the_ledger_tells_of_trajectories(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, max_staleness=0, **ONE_A_STEP)
    offering = Offering(queue, tmp_path)
    for key in "abc":
        await offering.offer(key)
    await train(queue, 0)
    queue.trajectories.gather()
    queue.close()
    table = ledger_table(read_ledger(tmp_path / LEDGER_DIR)).to_pylist()
    kinds = ("offered", "gathered", "declined")
    found = [(one["kind"], one["who"], one["key"], one["group_number"], one["data_index"]) for one in table]
    assert [one for one in found if one[0] in kinds] == [
        ("offered", "g", "a", None, None),
        ("offered", "g", "b", None, None),
        ("gathered", None, None, 0, 0),
        ("gathered", None, None, 0, 1),
        ("offered", "g", "c", None, None),
        ("declined", None, None, None, 2),
    ]


async def test_the_table_of_rollouts_has_trajectories_once_they_are_gathered(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, **ONE_A_STEP)
    offering = Offering(queue, tmp_path)
    for place, key in enumerate("abc"):
        await offering.offer(key, reward=place / 2)
    await train(queue, 0)
    queue.close()
    offering.log.close()
    facts = ledger_facts(read_ledger(tmp_path / LEDGER_DIR))
    logs = logged_completions(tmp_path, facts), logged_scores(tmp_path, facts)
    table, elsewhere = rollouts_table(facts, *logs)
    rows = table.sort_by("rollout_id").to_pylist()
    assert elsewhere == 0
    assert [(one["group_number"], one["state"], one["reward"], one["step"]) for one in rows] == [
        (0, "trained", 0.0, 1),
        (0, "trained", 0.5, 1),
    ]
    assert {(one["stream"], one["replica"], one["scorer"]) for one in rows} == {(OFFERED_STREAM, "clients", "clients")}
    assert [one["rollout_id"] for one in rows] == [f"{rows[0]['group_id']}/{place}" for place in range(2)]
    assert logs[0].table.num_rows == 3


async def test_invariants_1_and_2_hold_for_trajectories_under_random_kills(tmp_path: Path) -> None:
    seed = secrets.randbits(32)
    print("seed", seed)
    rng = random.Random(seed)
    settings = {"max_staleness": 3, **ONE_A_STEP}
    queue, step, covered, promised = open_queue(tmp_path, **settings), 0, 0, {}
    offering = Offering(queue, tmp_path)
    for number in range(60):
        what = rng.choice(["offer", "offer", "offer", "train", "kill", "cover"])
        if what == "offer":
            key = f"{rng.randrange(number + 1)}"
            standing = await offering.offer(key, group=rng.choice("gh"), step=step)
            if isinstance(standing, Standing):
                promised.setdefault(key, standing.item)
                assert promised[key] == standing.item
        elif what == "train" and queue.counts().groups_ready:
            await train(queue, step)
            step += 1
        elif what == "cover":
            await queue.covered(step)
            covered = step
        elif what == "kill":
            kill(queue)
            queue = open_queue(tmp_path, resume_step=covered, **settings)
            offering, step = Offering(queue, tmp_path), covered
    kill(queue)
    records = records_of(tmp_path)
    offered = [record.key for record in records if isinstance(record, Offered)]
    assert promised == {key: item for item, key in enumerate(offered)}
    left = [(item, record) for record in records if isinstance(record, Gathered | Declined) for item in record.items]
    assert max(Counter(item for item, _ in left).values(), default=1) == 1
    numbers = [record.number for record in records if isinstance(record, Gathered)]
    assert numbers == list(range(len(numbers)))
    for kind in (Issued, Accepted, Scored):
        assert sum(isinstance(record, kind) for record in records) == len(numbers) * (1 if kind is Issued else 2)
    trained = {record.step: record.numbers for record in records if isinstance(record, Step)}
    assert max(Counter(chain.from_iterable(trained.values())).values(), default=1) == 1
