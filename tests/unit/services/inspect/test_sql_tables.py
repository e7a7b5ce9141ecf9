"""The tables of `streamrl sql`: every accepted row once, with what the run itself had of it; and what is not there."""

from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from support.runs.looked_run import finished_run, interrupted_run, run_folder
from support.runs.small_run import (
    CHECKPOINT_EVERY,
    GROUP_SIZE,
    GROUPS,
    GROUPS_PER_STEP,
    STEPS,
    Order,
    completion_rows,
    queue_settings,
    reward_of,
    token_ids,
)

from streamrl.buffers.ledger.facts import RowState, ledger_facts
from streamrl.buffers.ledger.ledger import LedgerFile
from streamrl.buffers.ledger.records import (
    Accepted,
    Dropped,
    Incarnation,
    Issued,
    Record,
    RunHeader,
    Scored,
    Step,
    Withdrawn,
)
from streamrl.buffers.ledger.table import LEDGER, ledger_table
from streamrl.buffers.recovery.recorded import recorded_leases
from streamrl.buffers.recovery.row_tables import LoggedRows, rollouts_table
from streamrl.buffers.rows.arrow import completions_batch
from streamrl.buffers.rows.records import ACCEPTED, SCORED
from streamrl.buffers.rows.schema import COMPLETIONS, SCORES
from streamrl.buffers.segments.places import COMPLETIONS_DIR, SCORES_DIR
from streamrl.buffers.segments.writer import SegmentWriter
from streamrl.config import Config, load
from streamrl.errors import DataError
from streamrl.services.inspect.sql_tables import TABLES, ledger_of, steps_table, tables_for, weights
from streamrl.services.learner.step_plan import make_plan, shares_of
from streamrl.services.run.folder import RunFolder
from streamrl.types import FrameRef, Ticket


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return finished_run(tmp_path_factory.mktemp("looked"))


def look(run: RunFolder, *names: str) -> list[list[dict]]:
    tables = tables_for(run, " ".join(names), pytest.fail)
    return [tables[name].to_pylist() for name in names]


def test_rollouts_lead_from_the_prompt_to_the_weight_in_the_loss(run: RunFolder) -> None:
    (rows,) = look(run, "rollouts")
    assert len(rows) == GROUPS * GROUP_SIZE
    for row in rows:
        number, sample = row["group_number"], row["sample_index"]
        assert row["rollout_id"] == f"{number}/{sample}"
        assert (row["group_id"], row["prompt_id"]) == (str(number), str(Order().at(number)[1]))
        assert row["token_ids"] == [number, *token_ids(number, sample)]
        assert (row["prompt_tokens"], row["sampled_tokens"]) == (1, 1 + sample)
        assert [span["step"] for span in row["version_spans"]] == [row["oldest_step"]]
        assert (row["state"], row["status"], row["reward"]) == ("trained", "ok", reward_of(number, sample))
        assert row["staleness"] == row["step"] - 1 - row["oldest_step"]
        assert row["loss_weight"] != 0
    steps = sorted(row["step"] for row in rows)
    assert steps == sorted(list(range(1, STEPS + 1)) * GROUPS_PER_STEP * GROUP_SIZE)


def test_advantages_and_weights_are_those_of_the_learner_to_the_bit(run: RunFolder) -> None:
    config = load(run.config_path)
    (rows,) = look(run, "rollouts")
    told = {(row["group_number"], row["sample_index"]): row for row in rows}
    for lease in recorded_leases(run.path, queue_settings(), Order()):
        plan = make_plan(lease, config, 64)
        advantages = np.frombuffer(plan.advantages)
        for place, key in enumerate(zip(lease.group.tolist(), lease.sample_index.tolist(), strict=True)):
            assert told[key]["step"] == lease.step + 1
            assert told[key]["advantage"] == advantages[place]
            # Of `token_mean`, the default: every trained token of the batch weighs the same.
            assert told[key]["loss_weight"] == pytest.approx(advantages[place] / plan.total_tokens, rel=1e-6)


def judged_by(advantage: str, components: dict[str, float] | None, run: RunFolder) -> Config:
    config = load(run.config_path)
    algorithm = msgspec.structs.replace(config.learner.algorithm, advantage=advantage, components=components)
    return msgspec.structs.replace(config, learner=msgspec.structs.replace(config.learner, algorithm=algorithm))


@pytest.mark.parametrize(("advantage", "components"), [("gdpo", {"sample": 2.0, "place": 1.0}), ("remax", None)])
def test_so_are_those_of_components_and_of_greedy_rollouts(
    advantage: str, components: dict | None, run: RunFolder
) -> None:
    config = judged_by(advantage, components, run)
    table, facts = tables_for(run, "rollouts", pytest.fail)["rollouts"], ledger_facts(ledger_of(run.path))
    found = dict(zip(table["rollout_id"].to_pylist(), weights(table, facts, config).T.tolist(), strict=True))
    settings = msgspec.structs.replace(queue_settings(), components=tuple(components or ()))
    seen = []
    for lease in recorded_leases(run.path, settings, Order()):
        plan = make_plan(lease, config, 64)
        (share,) = shares_of(plan, 0, config)[0]
        for place, key in enumerate(zip(lease.group.tolist(), lease.sample_index.tolist(), strict=True)):
            advantage_of_row, weight = found[f"{key[0]}/{key[1]}"]
            assert advantage_of_row == share.advantages[place]
            expected = advantage_of_row / plan.total_tokens[0] if share.valid[place] else 0.0
            assert weight == pytest.approx(expected, rel=1e-6)
            seen.append(advantage_of_row)
    assert len(seen) == len(found)
    assert len(set(seen)) > 2


def test_a_step_whose_scores_lack_a_component_that_is_named_now_has_no_weights(run: RunFolder) -> None:
    table, facts = tables_for(run, "rollouts", pytest.fail)["rollouts"], ledger_facts(ledger_of(run.path))
    assert np.isnan(weights(table, facts, judged_by("gdpo", {"sample": 1.0, "style": 1.0}, run))).all()


def test_what_the_ledger_did_not_accept_is_in_completions_only(tmp_path: Path) -> None:
    run = finished_run(tmp_path)
    log = SegmentWriter(run.path, COMPLETIONS_DIR, "stranger", 0, COMPLETIONS, 2**16, "memory", 0.0)
    ticket = Ticket(0, 0, 0, 1, 1)
    frame = log.append(completions_batch(completion_rows(ticket, 0))).result()
    log.close()
    completions, scores, rollouts = look(run, "completions", "scores", "rollouts")
    strange = [row for row in completions if not row["accepted"]]
    assert [(row["segment"], row["frame_offset"], row["frame_row"]) for row in strange] == [
        (frame.path, frame.offset, place) for place in range(GROUP_SIZE)
    ]
    assert len(completions) == len(rollouts) + GROUP_SIZE == GROUPS * GROUP_SIZE + GROUP_SIZE
    assert all(row["attempt"] == 0 for row in rollouts)
    assert len(scores) == GROUPS * GROUP_SIZE
    assert all(row["accepted"] for row in scores)


def test_rows_that_wait_have_a_state_and_no_step(tmp_path: Path) -> None:
    run, small = interrupted_run(tmp_path, after="committed", step=1)
    counts = small.queue.counts()
    (rows,) = look(run, "rollouts")
    states = [row["state"] for row in rows]
    assert states.count("trained") == counts.rows_trained == 2 * GROUPS_PER_STEP * GROUP_SIZE
    assert states.count("ready") == counts.rows_ready + counts.rows_leased
    assert states.count("running") == counts.rows_complete + counts.rows_scored
    waiting = [row for row in rows if row["state"] != "trained"]
    assert all(row[name] is None for row in waiting for name in ("step", "staleness", "advantage", "loss_weight"))


def test_the_ledger_tells_a_group_from_its_issue_to_its_step(run: RunFolder) -> None:
    (ledger,) = look(run, "ledger")
    assert ledger[0]["kind"] == "header"
    positions = [row["position"] for row in ledger]
    assert positions == sorted(positions)
    story = [row for row in ledger if row["group_number"] == 3]
    assert [row["kind"] for row in story] == ["issued", *["accepted"] * GROUP_SIZE, *["scored"] * GROUP_SIZE, "trained"]
    issued, *_, trained = story
    assert (issued["who"], issued["data_index"], issued["attempt"]) == ("replica-0", Order().at(3)[1], 0)
    assert trained["step"] == 1
    covered = {row["step"] for row in ledger if row["kind"] == "covered"}
    assert covered == set(range(CHECKPOINT_EVERY, STEPS + 1, CHECKPOINT_EVERY))


def test_steps_have_one_row_a_step_whatever_lines_they_came_in(tmp_path: Path, run: RunFolder) -> None:
    steps = steps_table(run.metrics_path).to_pylist()
    assert [row["step"] for row in steps] == list(range(1, STEPS + 1))
    assert [row["eval/score"] for row in steps] == [None] * (STEPS - 1) + [0.5]
    assert steps_table(tmp_path / "none.jsonl").num_rows == 0
    mixed = tmp_path / "mixed.jsonl"
    mixed.write_text('{"step":1,"a":1}\n{"step":2,"a":"x"}\n{"step":3,"a":2.5,"b":null}\n{"step":4,"a"')
    assert steps_table(mixed).to_pylist() == [
        {"step": 1, "a": "1", "b": None},
        {"step": 2, "a": "x", "b": None},
        {"step": 3, "a": "2.5", "b": None},
    ]


def test_a_run_that_has_nothing_yet_has_all_tables_and_no_row(tmp_path: Path) -> None:
    tables = tables_for(run_folder(tmp_path), " ".join(TABLES), pytest.fail)
    assert {name: table.num_rows for name, table in tables.items()} == dict.fromkeys(TABLES, 0)


def test_a_table_has_its_columns_whether_it_was_asked_for_or_not(run: RunFolder) -> None:
    asked, not_asked = (tables_for(run, query, pytest.fail) for query in (" ".join(TABLES), "select 1"))
    for name in TABLES:
        plain = [(field.name, field.type) for field in asked[name].schema]
        assert plain == [(field.name, field.type) for field in not_asked[name].schema], name
        assert name == "steps" or not_asked[name].num_rows == 0


def test_rows_of_a_segment_that_is_not_here_are_counted_and_their_steps_have_no_weights(tmp_path: Path) -> None:
    run = finished_run(tmp_path)
    everything = {row["rollout_id"]: row for row in look(run, "rollouts")[0]}
    first = sorted((run.path / COMPLETIONS_DIR).glob("*.arrow"))[0]
    first.unlink()
    first.with_suffix(".idx").unlink()
    told: list[str] = []
    rows = tables_for(run, "rollouts", told.append)["rollouts"].to_pylist()
    lost = len(everything) - len(rows)
    assert lost > 0
    assert told == [f"{lost} accepted rows are not in this run folder (on another node, or let go): not in rollouts"]
    hurt = {row["step"] for row in everything.values()} - {row["step"] for row in rows if row["advantage"] is not None}
    assert hurt
    for row in rows:
        if row["step"] in hurt:
            assert (row["advantage"], row["loss_weight"]) == (None, None)
        else:
            assert row == everything[row["rollout_id"]]


def test_a_step_of_which_a_row_or_a_verdict_is_missing_has_no_weights(run: RunFolder) -> None:
    table = tables_for(run, "rollouts", pytest.fail)["rollouts"]
    facts, config = ledger_facts(ledger_of(run.path)), load(run.config_path)
    whole, step = weights(table, facts, config), table["step"].to_numpy()
    assert np.isfinite(whole).all()
    unscored = pa.array([None, *table["status"].to_pylist()[1:]], pa.string())
    for part in (table.slice(1), table.set_column(table.column_names.index("status"), "status", unscored)):
        kept = step[-part.num_rows :] != step[0]
        found = weights(part, facts, config)
        assert np.isnan(found[:, ~kept]).all()
        assert (found[:, kept] == whole[:, -part.num_rows :][:, kept]).all()


@pytest.mark.parametrize("advantage", ["gae", "prime"])
def test_a_run_whose_tokens_are_judged_one_by_one_has_no_weight_of_a_row(run: RunFolder, advantage: str) -> None:
    table = tables_for(run, "rollouts", pytest.fail)["rollouts"]
    config = load(run.config_path, overrides={"learner.algorithm.advantage": advantage})
    assert np.isnan(weights(table, ledger_facts(ledger_of(run.path)), config)).all()


def test_rows_are_told_apart_when_they_were_accepted_in_another_order_than_written() -> None:
    """Two segments, of two replicas: the later name was accepted first."""
    written = [completion_rows(Ticket(number, 0, 0, 0, 1), 0) for number in (0, 1)]
    frames = [FrameRef(f"{name}.arrow", 0, 8, GROUP_SIZE, 0, 0) for name in "ab"]
    table = pa.Table.from_batches([completions_batch(rows).replace_schema_metadata() for rows in written])
    completions = LoggedRows(frames, table, {("a.arrow", 0): 0, ("b.arrow", 0): GROUP_SIZE})
    scores = LoggedRows([], SCORES.remove_metadata().empty_table(), {})
    records = [accepted(1, 0, 1), accepted(0, 0, 1)]
    records = [
        msgspec.structs.replace(record, frame=frame) for record, frame in zip(records, frames[::-1], strict=True)
    ]
    rollouts, elsewhere = rollouts_table(ledger_facts(file_of(*records)), completions, scores)
    assert elsewhere == 0
    names = [
        f"{number}/{sample}" for number, sample in zip(rollouts["group_number"].to_pylist(), [0, 1, 0, 1], strict=True)
    ]
    assert rollouts["rollout_id"].to_pylist() == names == ["0/0", "0/1", "1/0", "1/1"]


@pytest.mark.parametrize("folder", [COMPLETIONS_DIR, SCORES_DIR])
def test_a_flipped_bit_is_an_error_with_file_and_offset_and_no_row(folder: str, tmp_path: Path) -> None:
    run = finished_run(tmp_path)
    path = sorted((run.path / folder).glob("*.arrow"))[0]
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=rf"{path.name}: offset \d+: "):
        tables_for(run, "rollouts", pytest.fail)
    assert tables_for(run, "ledger", pytest.fail)["ledger"].num_rows > 0


# ---- the ledger's own columns, of records written by hand


def file_of(*records: Record) -> list[LedgerFile]:
    return [LedgerFile(Path("000000.log"), 0, [RunHeader(1, "data", 0, 2, -1), *records], 0)]


def accepted(number: int, *samples: int, attempt: int = 0, finish: int = 0, offset: int = 0) -> Accepted:
    rows = np.zeros(len(samples), ACCEPTED)
    rows["number"], rows["sample_index"], rows["attempt"], rows["finish"] = number, samples, attempt, finish
    rows["row"] = np.arange(len(samples))
    return Accepted("replica-0", FrameRef("c.arrow", offset, 8, len(samples), 0, 0), rows.tobytes())


def scored(number: int, *samples: int, attempt: int = 0) -> Scored:
    rows = np.zeros(len(samples), SCORED)
    rows["number"], rows["sample_index"], rows["attempt"] = number, samples, attempt
    rows["row"] = np.arange(len(samples))
    return Scored("reward", FrameRef("s.arrow", 8 * number, 8, len(samples), 0, 0), rows.tobytes())


def states(*records: Record, failed: tuple[int, ...] = ()) -> list[str]:
    facts = ledger_facts(file_of(*records))
    valid = ~np.isin(np.arange(len(facts.rows)), failed)
    return [RowState(state).name.lower() for state in facts.states(valid)]


def test_a_row_is_running_until_its_whole_group_is_scored() -> None:
    assert states(accepted(0, 0), scored(0, 0)) == ["running"]
    assert states(accepted(0, 0), accepted(0, 1), scored(0, 0)) == ["running"] * 2
    assert states(accepted(0, 0, 1), scored(0, 1), scored(0, 0)) == ["ready"] * 2
    # Aborted rollouts are not scored by anybody.
    assert states(accepted(0, 0), accepted(0, 1, finish=2), scored(0, 0)) == ["ready"] * 2


def test_a_verdict_on_a_row_that_nobody_knows_goes_to_no_other_row() -> None:
    """As in a ledger of which a file cannot be read."""
    for strange in (scored(0, 1), scored(0, 0, attempt=1), scored(1, 0)):
        assert ledger_facts(file_of(accepted(0, 0), strange)).score_frame.tolist() == [-1]


def test_a_group_of_which_too_little_is_valid_is_dropped_even_if_the_process_died_before_it_said_so() -> None:
    assert states(accepted(0, 0, 1), scored(0, 0, 1), failed=(1,)) == ["dropped"] * 2
    assert states(accepted(0, 0, 1), scored(0, 0, 1), Dropped([0], "late")) == ["dropped"] * 2


def test_what_was_withdrawn_is_told_apart_from_what_came_in_its_place() -> None:
    first, again = accepted(0, 0, 1), accepted(0, 0, 1, attempt=1, offset=8)
    records = first, scored(0, 0, 1), Withdrawn([0], 3), again
    assert states(*records) == ["withdrawn"] * 2 + ["running"] * 2
    assert states(*records, scored(0, 0, 1, attempt=1)) == ["withdrawn"] * 2 + ["ready"] * 2
    facts = ledger_facts(file_of(*records, scored(0, 0, 1, attempt=1), Step(0, [0])))
    assert facts.trained_step().tolist() == [-1, -1, 0, 0]
    assert facts.score_frame.tolist() == [0, 0, 1, 1]


def test_a_step_of_a_lost_branch_counts_only_once_it_is_trained_again() -> None:
    group = accepted(0, 0, 1), scored(0, 0, 1)
    assert states(*group, Step(0, [0])) == ["trained"] * 2
    assert states(*group, Step(0, [0]), Incarnation(1, 0)) == ["ready"] * 2
    assert states(*group, Step(0, [0]), Incarnation(1, 0), Step(0, [0])) == ["trained"] * 2


def test_every_kind_of_record_is_a_row_and_says_nothing_that_it_does_not_know() -> None:
    records = Issued("a", [Ticket(0, 5, 1, 0, 2), Ticket(1, 6, 1, 0, 2)]), accepted(0, 0, 1), Withdrawn([0], 3)
    table = ledger_table(file_of(*records, Dropped([1], "late"), Issued("a", [])))
    assert table.schema.equals(LEDGER)
    assert table["kind"].to_pylist() == ["header", "issued", "issued", "accepted", "accepted", "withdrawn", "dropped"]
    assert table["group_number"].to_pylist() == [None, 0, 1, 0, 0, 0, 1]
    assert table["reason"].to_pylist() == [None] * 6 + ["late"]
    assert table["data_index"].to_pylist() == [None, 5, 6, None, None, None, None]
    assert ledger_table([]).equals(pa.table(LEDGER.empty_table()))
