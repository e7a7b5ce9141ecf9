"""Rows: what is built from numpy comes back token by token, and what may not be written is refused by name."""

import dataclasses

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrl.buffers.rows.arrow import CompletionRows, TokenColumns, completions_batch, scores_batch, token_columns
from streamrl.buffers.rows.checks import RowGate
from streamrl.buffers.rows.gather import rollout_rows, score_columns, scoring_rows
from streamrl.buffers.rows.records import AcceptedRows
from streamrl.buffers.rows.schema import COMPLETIONS, SCORES, check_readable
from streamrl.errors import DataError, NonFiniteError
from streamrl.types import FinishReason, GenerationResult, SamplingParams, Score, Version, VersionSpan


def result(ids, *, spans=((0, 0),), finish=FinishReason.STOP):
    """A result that sampled `ids`; spans are (start, step)."""
    tokens = np.array(ids, np.int32)
    return GenerationResult(
        request_id="r",
        token_ids=tokens,
        logprobs=(-0.1 * (1 + tokens)).astype(np.float32),
        version_spans=tuple(VersionSpan(start, Version(0, step)) for start, step in spans),
        finish_reason=finish,
    )


def completion_rows(*, tokens: TokenColumns, sample_index=None, finish=None, payload=None) -> CompletionRows:
    count = tokens.num_rows
    zeros = np.zeros(count, np.int32)
    samples = np.arange(count, dtype=np.int32) if sample_index is None else sample_index
    return CompletionRows(
        tokens=tokens,
        rollout_id=[f"g/{i}" for i in samples],
        branch=zeros,
        group_id=["g"] * count,
        prompt_id=["p"] * count,
        stream=["train"] * count,
        data_pass=zeros,
        sample_index=samples,
        attempt=zeros,
        finish_reason=finish or ["stop"] * count,
        sampling=SamplingParams(temperature=0.7),
        seed=np.arange(count, dtype=np.int64),
        turns=np.ones(count, np.int32),
        replica="replica-0",
        started_ns=np.zeros(count, np.int64),
        finished_ns=np.ones(count, np.int64),
        payload=payload or ['{"answer":"1"}'] * count,
    )


def two_rows() -> TokenColumns:
    prompts = [np.array([7, 8], np.int32), np.array([9], np.int32)]
    return token_columns(prompts, [result([1, 2, 3], spans=((0, 4), (2, 5))), result([4], spans=((0, 6),))])


def gather(batches, frame_of_row, row_in_frame):
    count = len(row_in_frame)
    return rollout_rows(
        batches,
        np.array(frame_of_row),
        np.array(row_in_frame),
        np.arange(count, dtype=np.int64),
        np.zeros(count, np.int64),
        np.ones(count),
        np.ones(count, np.bool_),
    )


def test_a_prompt_and_a_completion_become_one_row_with_origins_and_zero_logprobs_on_the_prompt():
    tokens = two_rows()
    assert tokens.offsets.tolist() == [0, 5, 7]
    assert tokens.token_ids.tolist() == [7, 8, 1, 2, 3, 9, 4]
    assert tokens.token_origin.tolist() == [0, 0, 1, 1, 1, 0, 1]
    assert tokens.rollout_logprobs[[0, 1, 5]].tolist() == [0, 0, 0]
    assert tokens.span_start.tolist() == [2, 4, 1]
    assert tokens.sampled_tokens().tolist() == [3, 1]
    assert tokens.oldest_steps().tolist() == [4, 6]


def test_a_built_batch_passes_the_writers_checks_and_has_the_schema_with_its_version():
    batch = completions_batch(completion_rows(tokens=two_rows()))
    RowGate(COMPLETIONS).check(batch)
    batch.validate(full=True)
    assert batch.schema.metadata[b"streamrl.schema"] == b"1.2"
    assert batch.column("sampling")[1].as_py()["temperature"] == 0.7
    assert batch.column("sampling")[1].as_py()["seed"] == 1


def test_no_schema_has_a_dictionary_column():
    for schema in (COMPLETIONS, SCORES):
        assert not any(pa.types.is_dictionary(field.type) for field in schema)


def test_gathered_rows_have_the_order_asked_for_and_the_step_of_each_sampled_token():
    first = completions_batch(completion_rows(tokens=two_rows()))
    second = completions_batch(
        completion_rows(tokens=token_columns([np.array([5], np.int32)], [result([6, 7], spans=((0, 9),))]))
    )
    rows = gather([first, second], [1, 0, 0], [0, 0, 1])
    assert rows.offsets.tolist() == [0, 3, 8, 10]
    assert rows.token_ids.tolist() == [5, 6, 7, 7, 8, 1, 2, 3, 9, 4]
    assert rows.token_steps.tolist() == [-1, 9, 9, -1, -1, 4, 4, 5, -1, 6]
    assert rows.oldest_steps().tolist() == [9, 4, 6]
    assert rows.replica == ["replica-0"] * 3


def test_gathering_a_row_that_the_frame_does_not_have_is_an_error_and_not_another_frames_row():
    batch = completions_batch(completion_rows(tokens=two_rows()))
    with pytest.raises(IndexError, match="beyond"):
        gather([batch, batch], [0], [2])


def test_a_failed_rows_reward_is_nan_whatever_stood_there():
    batch = completions_batch(completion_rows(tokens=two_rows()))
    ones = np.ones(2, np.int64)
    valid = np.array([True, False])
    rows = rollout_rows([batch], ones * 0, np.arange(2), ones, ones, np.array([0.5, 0.5]), valid)
    assert rows.rewards[0] == 0.5
    assert np.isnan(rows.rewards[1])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 5), st.integers(0, 6), st.integers(0, 3), st.integers(0, 4)),
        min_size=1,
        max_size=8,
    ),
    st.randoms(use_true_random=False),
)
def test_vectorised_gathering_equals_a_plain_loop_over_ragged_rows(shapes, random):
    prompts = [np.arange(length, dtype=np.int32) for length, *_ in shapes]
    results = []
    for _, sampled, cut, step in shapes:
        spans = ((0, step), (cut, step + 1)) if 0 < cut < sampled else ((0, step),)
        results.append(result(list(range(sampled)), spans=spans if sampled else ()))
    batch = completions_batch(completion_rows(tokens=token_columns(prompts, results)))
    RowGate(COMPLETIONS).check(batch)
    order = list(range(len(shapes)))
    random.shuffle(order)
    rows = gather([batch], [0] * len(order), order)
    for place, row in enumerate(order):
        part = slice(rows.offsets[place], rows.offsets[place + 1])
        wanted = [-1] * len(prompts[row])
        for token in range(len(results[row].token_ids)):
            spans = [span.version.step for span in results[row].version_spans if span.start <= token]
            wanted.append(spans[-1])
        assert rows.token_steps[part].tolist() == wanted
        assert rows.token_ids[part].tolist() == [*prompts[row], *results[row].token_ids]
        assert rows.rollout_logprobs[part].tolist()[len(prompts[row]) :] == results[row].logprobs.tolist()


def test_the_reward_stage_sees_sampled_ids_prompt_ids_and_payload_of_the_rows_it_asked_for():
    batch = completions_batch(completion_rows(tokens=two_rows(), payload=['{"a":1}', '{"a":2}']))
    rows = scoring_rows(batch, np.array([1, 0]))
    assert rows.payload == ['{"a":2}', '{"a":1}']
    assert rows.sampled_ids.tolist() == [4, 1, 2, 3]
    assert rows.sampled_offsets.tolist() == [0, 1, 4]
    assert rows.prompt_ids.tolist() == [9, 7, 8]
    assert rows.prompt_offsets.tolist() == [0, 1, 3]
    assert rows.finish_reason == ["stop", "stop"]
    assert scoring_rows(batch).rollout_id == ["g/0", "g/1"]


def test_environment_tokens_after_a_turn_are_neither_prompt_nor_sampled():
    tokens = TokenColumns(
        offsets=np.array([0, 5]),
        token_ids=np.arange(5, dtype=np.int32),
        token_origin=np.array([0, 1, 2, 2, 1], np.uint8),
        rollout_logprobs=np.zeros(5, np.float32),
        span_offsets=np.array([0, 1]),
        span_start=np.array([1], np.int32),
        span_incarnation=np.zeros(1, np.int32),
        span_step=np.array([3]),
    )
    batch = completions_batch(completion_rows(tokens=tokens))
    RowGate(COMPLETIONS).check(batch)
    rows = scoring_rows(batch)
    assert rows.sampled_ids.tolist() == [1, 4]
    assert rows.prompt_ids.tolist() == [0]
    assert gather([batch], [0], [0]).token_steps.tolist() == [-1, 3, -1, -1, 3]


def test_a_failed_score_is_a_null_reward_with_a_reason_and_comes_back_invalid():
    scores = [Score.ok(0.5, {"exact": 0.5}), Score.failed("timeout")]
    batch = scores_batch(["g/0", "g/1"], np.zeros(2, np.int32), scores, scorer="s", scored_ns=5)
    RowGate(SCORES).check(batch)
    assert batch.column("reward").to_pylist() == [0.5, None]
    assert batch.column("components")[0].as_py() == [("exact", 0.5)]
    assert batch.column("reason").to_pylist() == ["", "timeout"]
    valid, reward = score_columns(batch)
    assert valid.tolist() == [True, False]
    assert reward[0] == 0.5
    assert np.isnan(reward[1])


def test_what_the_index_is_told_of_the_rows_is_derived_from_what_was_written():
    rows = completion_rows(tokens=two_rows(), finish=["length", "error"])
    accepted = AcceptedRows.of(rows, np.array([3, 4]))
    assert accepted.prompt_tokens.tolist() == [2, 1]
    assert accepted.sampled_tokens.tolist() == [3, 1]
    assert accepted.oldest_step.tolist() == [4, 6]
    assert accepted.finish.tolist() == [1, 3]
    assert accepted.packed()["row"].tolist() == [0, 1]


def test_a_rollout_without_a_token_has_no_span_and_no_oldest_step():
    tokens = token_columns([np.array([1, 2], np.int32)], [result([], finish=FinishReason.ERROR)])
    RowGate(COMPLETIONS).check(completions_batch(completion_rows(tokens=tokens)))
    assert tokens.oldest_steps().tolist() == [-1]


def broken(name, values) -> pa.RecordBatch:
    """The two-row batch with one column replaced."""
    batch = completions_batch(completion_rows(tokens=two_rows()))
    return batch.set_column(batch.schema.get_field_index(name), COMPLETIONS.field(name), values)


def column(name, values) -> pa.Array:
    return pa.array(values, COMPLETIONS.field(name).type)


def span(start, step=4):
    return {"start": start, "incarnation": 0, "step": step}


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("token_origin", [[0, 0, 1, 1, 1], [0]], r"row 1 .*differ in length"),
        ("rollout_logprobs", [[0, 0, -1, -1, -1], [0, -1, -1]], r"row 1 .*differ in length"),
        ("token_origin", [[0, 0, 1, 1, 3], [0, 1]], r"row 0 .*token_origin"),
        ("prompt_id", ["p", None], r"row 1 .*null in column 'prompt_id'"),
        ("version_spans", [[span(2)], []], r"row 1 .*before the first version span"),
        ("version_spans", [[span(3)], [span(1)]], r"row 0 .*before the first"),
        ("version_spans", [[span(2)], [span(2)]], r"row 1 .*outside"),
        ("version_spans", [[span(-1)], [span(1)]], r"row 0 .*outside"),
        (
            "version_spans",
            [[span(2), span(4, 3)], [span(1)]],
            r"row 0 .*older version",
        ),
    ],
)
def test_a_row_that_does_not_add_up_is_refused_by_its_number(name, values, message):
    with pytest.raises(DataError, match=message):
        RowGate(COMPLETIONS).check(broken(name, column(name, values)))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_invariant_12_a_logprob_that_is_not_finite_is_refused_by_its_row(value):
    logprobs = column("rollout_logprobs", [[0, 0, -1, -1, -1], [0, value]])
    with pytest.raises(NonFiniteError, match="row 1"):
        RowGate(COMPLETIONS).check(broken("rollout_logprobs", logprobs))


def test_huge_logprobs_pass_though_their_sum_is_infinite_and_infinities_that_cancel_do_not():
    RowGate(COMPLETIONS).check(
        broken("rollout_logprobs", column("rollout_logprobs", [[0, 0, -3e38, -3e38, -1], [0, -1]]))
    )
    cancelling = column("rollout_logprobs", [[0, 0, float("inf"), float("-inf"), -1], [0, -1]])
    with pytest.raises(NonFiniteError, match="row 0"):
        RowGate(COMPLETIONS).check(broken("rollout_logprobs", cancelling))


def test_a_null_inside_a_token_list_is_refused_by_its_row():
    values = pa.array([7, 8, 1, 2, 3, None, 4], pa.int32())
    kind = COMPLETIONS.field("token_ids").type
    ids = pa.ListArray.from_arrays(pa.array([0, 5, 7], pa.int32()), values, type=kind)
    with pytest.raises(DataError, match=r"row 1 .*null inside column 'token_ids'"):
        RowGate(COMPLETIONS).check(broken("token_ids", ids))


def test_a_slice_of_a_batch_is_checked_by_its_own_rows():
    logprobs = column("rollout_logprobs", [[0, 0, -1, -1, float("nan")], [0, -1]])
    batch = broken("rollout_logprobs", logprobs)
    RowGate(COMPLETIONS).check(batch.slice(1))
    with pytest.raises(NonFiniteError, match="row 0"):
        RowGate(COMPLETIONS).check(batch.slice(0, 1))


def test_another_schema_and_an_empty_batch_are_refused():
    batch = completions_batch(completion_rows(tokens=two_rows()))
    with pytest.raises(DataError, match="schema"):
        RowGate(SCORES).check(batch)
    with pytest.raises(DataError, match="without rows"):
        RowGate(COMPLETIONS).check(batch.slice(0, 0))


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"streamrl.schema": "2.0"}, r"version 2.0, this release reads 1.x"),
        ({"streamrl.schema": "one"}, "major.minor"),
        ({"streamrl.schema": b"\xff.0"}, "major.minor"),
        ({"streamrl.schema": "9" * 5000 + ".0"}, "major.minor"),
        ({}, "carries no streamrl.schema"),
        ({"streamrl.schema": "1.0"}, "table ''"),
        ({"streamrl.schema": "1.0", "streamrl.table": "prices"}, "table 'prices'"),
        ({"streamrl.schema": "1.0", "streamrl.table": "scores"}, "'revision' is missing"),
    ],
)
def test_a_newer_or_foreign_schema_is_refused_by_the_name_of_its_file(metadata, message):
    with pytest.raises(DataError, match=rf"x.arrow: .*{message}|{message}"):
        check_readable(COMPLETIONS.with_metadata(metadata), "x.arrow")


def test_a_newer_minor_with_a_further_column_is_read():
    metadata = {"streamrl.schema": "1.7", "streamrl.table": "completions"}
    check_readable(COMPLETIONS.append(pa.field("further", pa.int8())).with_metadata(metadata), "x.arrow")


def test_a_column_of_a_later_minor_may_be_missing_and_another_one_may_not():
    check_readable(SCORES.remove(SCORES.get_field_index("info")), "x.arrow")
    with pytest.raises(DataError, match=r"x.arrow: .*'reward' is missing or of another type"):
        check_readable(SCORES.remove(SCORES.get_field_index("reward")), "x.arrow")


def test_a_column_whose_name_is_no_text_is_refused():
    message = SCORES.serialize().to_pybytes().replace(b"scored_ns", b"scored\xff\xffs")
    with pytest.raises(DataError, match=r"x.arrow: .*the name of a column is no text"):
        check_readable(pa.ipc.read_schema(pa.py_buffer(message)), "x.arrow")


def test_a_column_of_another_type_is_refused_by_its_name():
    place = COMPLETIONS.get_field_index("token_ids")
    other = COMPLETIONS.set(place, pa.field("token_ids", pa.list_(pa.int64()), nullable=False))
    with pytest.raises(DataError, match=r"x.arrow: .*'token_ids' is missing or of another type"):
        check_readable(other, "x.arrow")


def test_frozen_rows_cannot_be_changed_behind_the_writer():
    with pytest.raises(dataclasses.FrozenInstanceError):
        two_rows().offsets = np.zeros(1)
