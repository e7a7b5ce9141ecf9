"""SGLang's answers become our records, or say what is wrong with them; nothing is guessed."""

import json
from typing import Any

import pytest

from streamrl.engines.server.sglang.answers import (
    STARTED_WITH,
    ChunkReader,
    check_server,
    read_load,
    read_version,
    was_tried,
)
from streamrl.errors import ConfigError, DataError
from streamrl.types import FinishReason, Version, VersionSpan

FIRST, SECOND = Version(0, 1), Version(0, 2)


def span(version: str, start: int, end: int) -> dict[str, Any]:
    return {"version": version, "start": start, "end": end}


def row(token: int, logprob: float | None = -0.5) -> list[Any]:
    return [logprob, token, None]


def chunk(ids: list[int], total: int, *, rows: list[Any] | None = None, **meta: Any) -> str:
    rows = [row(one) for one in ids] if rows is None else rows
    return json.dumps(
        {"output_ids": ids, "meta_info": {"completion_tokens": total, "output_token_logprobs": rows, **meta}}
    )


def last(ids: list[int], *, ending: dict[str, Any] | None = None, spans: Any = ()) -> str:
    """The only chunk of a completion."""
    spans = [span("0.1", 0, len(ids))] if spans == () else spans
    return chunk(ids, len(ids), finish_reason=ending or {"type": "length"}, weight_versions=spans)


def all_ids(chunks: list[str], limit: int) -> list[list[int]]:
    reader = ChunkReader(limit)
    return [reader.read(one).token_ids.tolist() for one in chunks]


def test_chunks_that_carry_all_so_far_and_chunks_that_carry_what_is_new_give_the_same_pieces() -> None:
    end = {"finish_reason": {"type": "length"}, "weight_versions": [span("0.1", 0, 5)]}
    cumulative = [chunk([7], 1), chunk([7, 8, 9], 3), chunk([7, 8, 9, 4, 4], 5, **end)]
    incremental = [chunk([7], 1), chunk([8, 9], 3), chunk([4, 4], 5, **end)]
    assert all_ids(cumulative, 5) == all_ids(incremental, 5) == [[7], [8, 9], [4, 4]]


def test_the_last_token_that_an_abort_from_the_queue_repeats_is_not_taken_twice() -> None:
    end = {"finish_reason": {"type": "abort"}, "weight_versions": [span("0.1", 0, 3)]}
    every = [row(7), row(8), row(9)]
    alone = [chunk([7], 1), chunk([8, 9], 3), chunk([9], 3, rows=every, **end)]
    assert all_ids(alone, 8) == [[7], [8, 9], []]
    # The server may join it with the chunk before.
    joined = [chunk([7], 1), chunk([8, 9, 9], 3, rows=[row(8), row(9), *every], **end)]
    assert all_ids(joined, 8) == [[7], [8, 9]]


def test_the_last_piece_says_which_version_sampled_which_token() -> None:
    spans = [span("0.1", 0, 2), span("0.2", 2, 3)]
    piece = ChunkReader(3).read(last([7, 8, 9], spans=spans))
    assert piece.finish_reason is FinishReason.LENGTH
    assert piece.version_spans == (VersionSpan(0, FIRST), VersionSpan(2, SECOND))
    assert piece.logprobs.dtype == "float32"
    assert piece.token_ids.dtype == "int32"


def test_tokens_of_the_weights_that_the_server_started_with_are_older_than_every_version() -> None:
    piece = ChunkReader(2).read(last([7, 8], spans=[span("default", 0, 1), span("0.0", 1, 2)]))
    assert piece.version_spans == (VersionSpan(0, STARTED_WITH), VersionSpan(1, Version(0, 0)))


def test_a_completion_without_tokens_has_no_spans() -> None:
    piece = ChunkReader(8).read(last([], ending={"type": "abort"}, spans=[span("0.1", 0, 0)]))
    assert (piece.finish_reason, piece.version_spans) == (FinishReason.ABORT, ())


@pytest.mark.parametrize(
    "spans",
    [
        None,
        [],
        [span("0.1", 0, 2)],
        [span("0.1", 0, 4)],
        [span("0.1", 1, 3)],
        [span("0.1", 0, 1), span("0.2", 2, 3)],
        [span("0.2", 0, 1), span("0.1", 1, 3)],
        [span("v7", 0, 3)],
    ],
)
def test_spans_that_do_not_tell_the_version_of_each_token_are_refused(spans: Any) -> None:
    with pytest.raises(DataError, match="weight_versions"):
        ChunkReader(3).read(last([7, 8, 9], spans=spans))


def test_a_log_prob_that_is_not_a_number_is_refused_and_named() -> None:
    reader = ChunkReader(8)
    reader.read(chunk([7], 1))
    with pytest.raises(DataError, match="log-prob of token 2 is None"):
        reader.read(chunk([8, 9], 3, rows=[row(8), row(9, None)]))


@pytest.mark.parametrize(
    "broken",
    [
        chunk([7, 8], 2, rows=[row(7)]),
        chunk([7, 8], 2, rows=[row(7), row(9)]),
        chunk([7], 2),
        chunk([-1], 1),
        chunk([2**31], 1),
        '{"output_ids": [7]}',
        '{"output_ids": 7, "meta_info": {}}',
        "Internal Server Error",
    ],
)
def test_a_chunk_whose_parts_do_not_fit_each_other_is_refused(broken: str) -> None:
    with pytest.raises(DataError):
        ChunkReader(8).read(broken)


def test_a_completion_that_shrinks_is_refused() -> None:
    reader = ChunkReader(8)
    reader.read(chunk([7, 8], 2))
    with pytest.raises(DataError, match="from 2 to 1 tokens"):
        reader.read(chunk([7], 1))


def test_an_unknown_reason_to_end_is_refused() -> None:
    with pytest.raises(DataError, match="'preempted'"):
        ChunkReader(1).read(last([7], ending={"type": "preempted"}))


def test_a_stop_is_at_the_token_that_matched() -> None:
    reason = ChunkReader(8).read(last([7, 2], ending={"type": "stop", "matched": 2})).finish_reason
    assert reason is FinishReason.STOP
    with pytest.raises(DataError, match="stopped by token 2"):
        ChunkReader(8).read(last([7, 8], ending={"type": "stop", "matched": 2}))


def test_a_stop_for_numbers_that_are_not_finite_is_an_error_and_its_made_up_token_is_not_a_completion() -> None:
    piece = ChunkReader(8).read(last([7, 2], ending={"type": "stop", "matched": "NaN happened"}))
    assert (piece.finish_reason, piece.version_spans) == (FinishReason.ERROR, ())
    assert "NaN happened" in piece.error


def test_an_abort_with_a_status_is_a_refusal() -> None:
    ending = {"type": "abort", "message": "too long", "status_code": 400, "err_type": "BadRequestError"}
    piece = ChunkReader(8).read(last([], ending=ending))
    assert (piece.finish_reason, piece.error) == (FinishReason.ERROR, "too long")
    told = ChunkReader(8).read(last([7], ending={**ending, "status_code": None}))
    assert (told.finish_reason, told.error) == (FinishReason.ABORT, "")


def test_a_completion_that_was_shortened_without_a_word_is_refused() -> None:
    with pytest.raises(DataError, match="after 2 of 3 tokens"):
        ChunkReader(3).read(last([7, 8]))


@pytest.mark.parametrize("words", [{"message": "no room", "type": "invalid_request_error"}, "no room"])
def test_an_error_inside_a_stream_is_an_error_of_the_request(words: Any) -> None:
    piece = ChunkReader(8).read(json.dumps({"error": words}))
    assert (piece.finish_reason, piece.error) == (FinishReason.ERROR, "no room")


@pytest.mark.parametrize(
    ("body", "tried"),
    [
        ({"success": False, "message": "Failed to update weights: shapes differ.", "num_paused_requests": 0}, True),
        ({"error": {"message": "no"}}, False),
        ({"error": "Unauthorized"}, False),
        ({"object": "error", "message": "no", "type": "Bad Request", "code": 400}, False),
        ("Internal Server Error", False),
    ],
)
def test_only_an_answer_from_the_part_that_holds_the_weights_means_that_they_may_have_changed(
    body: Any, tried: bool
) -> None:
    assert was_tried(json.dumps(body).encode()) is tried


@pytest.mark.parametrize(
    ("label", "version"), [("3.14", Version(3, 14)), ("default", None), ("1", None), ("step-1.2", None)]
)
def test_a_label_that_is_not_ours_is_no_version(label: str, version: Version | None) -> None:
    assert read_version(json.dumps({"model_path": "/m", "weight_version": label}).encode()) == version


def test_the_load_is_that_of_all_ranks() -> None:
    loads = [
        {"dp_rank": rank, "num_running_reqs": 3, "num_waiting_reqs": rank, "token_usage": 0.25 * rank}
        for rank in range(3)
    ]
    load = read_load(json.dumps({"loads": loads}).encode())
    assert (load.running, load.waiting, load.kv_use) == (9, 3, 0.5)
    with pytest.raises(DataError, match="names no rank"):
        read_load(b'{"loads": []}')


def server(**changes: Any) -> bytes:
    known = {"version": "0.5.23", "disable_overlap_schedule": True, "allow_auto_truncate": False, "dp_size": 1}
    return json.dumps({**known, **changes}).encode()


@pytest.mark.parametrize("version", ["0.5.22", "0.5.23", "0.5.23.post1", "0.5.22+cu129"])
def test_the_releases_whose_answers_are_known_are_spoken(version: str) -> None:
    assert check_server(server(version=version)) == version


@pytest.mark.parametrize("version", ["0.5.21", "0.5.24", "0.6.0", "1.0", "0.5.23rc1", "main"])
def test_other_releases_are_refused_by_name_and_with_what_is_spoken(version: str) -> None:
    with pytest.raises(ConfigError, match=rf"'{version}'.*0\.5\.22 to 0\.5\.23"):
        check_server(server(version=version))


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"disable_overlap_schedule": False}, "add --disable-overlap-schedule"),
        ({"allow_auto_truncate": True}, "drop --allow-auto-truncate"),
        ({"speculative_algorithm": "EAGLE"}, "drop --speculative-algorithm EAGLE"),
        ({"dp_size": 2}, "--dp-size 1"),
    ],
)
def test_a_server_that_runs_in_a_way_that_breaks_a_promise_is_refused_with_the_flag(
    changes: dict[str, Any], flag: str
) -> None:
    with pytest.raises(ConfigError, match=flag):
        check_server(server(**changes))
