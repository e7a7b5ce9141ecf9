"""Prompts that clients submit to be trained on, through the real gateway, queue, replica and reward stage."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.gateway.local_gateway import ENDLESS, local_gateway, until
from support.gateway.submitted_prompts import GROUP_SIZE, answers, gateway_of, line, submission, told

from streamrl.services.gateway.training.prompts import UNSENT, PromptStream


async def test_each_prompt_is_accepted_then_answered_with_its_scored_rollouts(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as gateway:
        said = await answers(gateway, line("a") + line("b", "2+3=", answer="5"))
    assert [one["type"] for one in said[:2]] == ["accepted", "accepted"]
    assert [(one["key"], one["number"]) for one in said[:2]] == [("a", 0), ("b", 1)]
    assert said[-1] == {"type": "end"}
    finished = {one["key"]: one for one in said[2:-1]}
    assert {one["type"] for one in finished.values()} == {"finished"}
    assert sorted(one["group"] for one in finished.values()) == [0, 1]
    for one in finished.values():
        rollouts = one["rollouts"]
        assert [rollout["sample_index"] for rollout in rollouts] == list(range(GROUP_SIZE))
        assert len(one["prompt_token_ids"]) >= 4
        for rollout in rollouts:
            assert 0 < len(rollout["token_ids"]) == len(rollout["logprobs"]) <= 6
            assert rollout["version_spans"] == [[0, "0.1"]]
            assert rollout["reward"] in (0.0, 1.0)
            assert rollout["replica"] == "rollout-0"
    texts = [[rollout["text"] for rollout in one["rollouts"]] for one in finished.values()]
    assert texts[0] != texts[1]


async def test_lines_and_answers_travel_at_once_over_one_request(tmp_path: Path) -> None:
    first_answered = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield line("first")[:7]
        yield line("first")[7:]
        await first_answered.wait()
        yield line("second").rstrip()  # the last line needs no end

    keys = []
    async with gateway_of(tmp_path) as gateway, submission(gateway, body()) as response:
        async for one in told(response):
            if one["type"] == "finished":
                keys.append(one["key"])
                first_answered.set()
    assert keys == ["first", "second"]


async def test_a_key_that_is_known_is_answered_again_and_not_generated_again(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as gateway:
        first = await answers(gateway, line("a"))
        again = await answers(gateway, line("a") + line("a", "9+9="))
        elsewhere = await answers(gateway, line("a"), stream="others")
        counts = await gateway.queue.status.remote()  # type: ignore[union-attr]
    assert again == [first[0], *first]
    assert [one["number"] for one in (first[0], elsewhere[0])] == [0, 1]
    assert counts["groups_issued"] == 2


async def test_a_line_that_is_no_prompt_is_answered_and_the_others_go_on(tmp_path: Path) -> None:
    lines = [
        b"{",
        b"[]",
        b'{"key":"k"}',
        b'{"key":"","prompt":"1"}',
        b'{"key":"k","prompt":"1","n":3}',
        json.dumps({"key": "k", "prompt": "1" * 41}).encode(),
        json.dumps({"key": "k", "prompt": "1", "payload": {"x": "y" * 5000}}).encode(),
        b'{"key":"k","prompt":"1","payload":[]}',
        b"\xff\xfe",
        b"",
        b'{"key":' + b"[" * 10**5,
        b'{"key":"k","prompt":"1","payload":' + b'{"a":' * 2000 + b"1" + b"}" * 2001,
        b'{"key":"k","prompt":"1","payload":{"x":NaN}}',
        line("good").strip(),
    ]
    async with gateway_of(tmp_path) as gateway:
        said = await answers(gateway, b"\n".join(lines))
    faults = [(one["line"], one["key"], one["error"]["code"]) for one in said if one["type"] == "error"]
    assert faults == [
        (1, None, "invalid_json"),
        (2, None, "invalid_value"),
        (3, "k", "missing_parameter"),
        (4, "", "invalid_value"),
        (5, "k", "unknown_parameter"),
        (6, "k", "context_length_exceeded"),
        (7, "k", "payload_too_long"),
        (8, "k", "invalid_value"),
        (9, None, "invalid_json"),
        (10, None, "nested_too_deep"),
        (11, None, "nested_too_deep"),
        (12, "k", "invalid_value"),
    ]
    assert [one["key"] for one in said if one["type"] == "finished"] == ["good"]


async def test_a_line_without_end_ends_the_stream_and_nothing_that_was_accepted(tmp_path: Path) -> None:
    async with gateway_of(tmp_path, max_body_bytes=1000) as gateway:
        said = await answers(gateway, line("a") + b"x" * 1001)
        again = await answers(gateway, line("a"))
    assert said[-1]["error"]["code"] == "line_too_long"
    assert [one["type"] for one in again] == ["accepted", "finished", "end"]


async def test_cancelling_frees_the_slots_and_tells_who_waits(tmp_path: Path) -> None:
    async with gateway_of(tmp_path, **ENDLESS) as gateway, submission(gateway, line("a") + line("b")) as response:
        stream = told(response)
        assert [(await anext(stream))["key"] for _ in range(2)] == ["a", "b"]
        replica = gateway.replicas["rollout-0"]
        await until(lambda: len(replica._rollouts) == 2 * GROUP_SIZE)
        status, answer = await gateway.ask("/api/prompts/cancel", {"keys": ["a"]})
        assert (status, answer) == (200, {"generating": 1})
        assert await anext(stream) == {"type": "dropped", "key": "a", "reason": "cancelled"}
        await until(lambda: len(replica._rollouts) == GROUP_SIZE)
        await gateway.ask("/api/prompts/cancel", {"keys": ["b", "a"]})
        assert [one["type"] async for one in stream] == ["dropped", "end"]
        await until(lambda: not len(replica._rollouts))
        status, answer = await gateway.ask("/api/prompts/cancel", {"keys": ["a", "x"]})
        assert (status, answer["error"]["code"]) == (404, "unknown_prompt")


async def test_however_many_prompts_wait_one_call_waits_at_the_queue(tmp_path: Path) -> None:
    accepted = asyncio.Semaphore(0)

    async def one_by_one() -> AsyncIterator[bytes]:
        for number in range(40):
            yield line(f"k{number}")
            await accepted.acquire()

    async with gateway_of(tmp_path, **ENDLESS) as gateway, submission(gateway, one_by_one()) as response:
        stream, queue = told(response), gateway.queue
        assert queue is not None
        for _ in range(40):
            assert (await anext(stream))["type"] == "accepted"
            accepted.release()
        await until(lambda: not queue.under_way["ended"])
        assert (queue.under_way["ends"], queue.under_way["submit"]) == (1, 0)
        await gateway.ask("/api/prompts/cancel", {"keys": ["k7"]})
        assert (await anext(stream))["key"] == "k7"


async def test_a_client_that_goes_away_loses_nothing(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as gateway:
        async with submission(gateway, line("a") + line("b")) as response:
            await response.content.readline()
        said = await answers(gateway, line("b") + line("a"))
    assert sorted(one["key"] for one in said if one["type"] == "finished") == ["a", "b"]


async def test_no_more_prompts_are_taken_than_may_be_open(tmp_path: Path) -> None:
    everything = b"".join(line(f"k{number}") for number in range(12))
    async with gateway_of(tmp_path, max_prompts=3, **ENDLESS) as gateway:
        async with submission(gateway, everything) as response:
            stream = told(response)
            assert [(await anext(stream))["key"] for _ in range(3)] == ["k0", "k1", "k2"]
            await gateway.ask("/api/prompts/cancel", {"keys": ["k1"]})
            assert [(await anext(stream))["type"] for _ in range(2)] == ["dropped", "accepted"]
            counts = await gateway.queue.status.remote()  # type: ignore[union-attr]
        assert counts["prompts_submitted"] == 4


async def test_no_line_is_taken_while_the_client_has_too_much_to_read(tmp_path: Path) -> None:
    """Lines that are no prompts cost the client next to nothing."""
    bodies = [line("a"), b"{\n" * (UNSENT + 1), b"{\n"]
    order: list[str] = []

    async def receive() -> dict[str, Any]:
        order.append("asked")
        return {"type": "http.request", "body": bodies.pop(0), "more_body": bool(bodies)}

    async def send(message: Any) -> None:
        taken = message.get("body", b"").count(b"\n")
        order.extend(["took them"] * (taken > UNSENT))

    async with gateway_of(tmp_path, **ENDLESS) as gateway:
        stream = PromptStream(gateway.actor._prompts, "clients")
        async with asyncio.TaskGroup() as both:
            streaming = both.create_task(stream({}, receive, send))
            await until(lambda: not bodies)
            streaming.cancel()
    assert order[:4] == ["asked", "asked", "took them", "asked"]


async def test_when_the_run_ends_the_client_is_told_to_submit_again(tmp_path: Path) -> None:
    async with gateway_of(tmp_path, **ENDLESS) as gateway, submission(gateway, line("a")) as response:
        stream = told(response)
        assert (await anext(stream))["type"] == "accepted"
        await gateway.end_queue()
        (last,) = [one async for one in stream]
        assert (last["type"], last["error"]["code"]) == ("error", "run_ended")
        late = await answers(gateway, line("b"))
        assert [one["error"]["code"] for one in late] == ["run_not_ready"]


async def test_a_queue_that_is_gone_is_said_so(tmp_path: Path) -> None:
    async with gateway_of(tmp_path, **ENDLESS) as gateway, submission(gateway, line("a")) as response:
        stream = told(response)
        assert (await anext(stream))["type"] == "accepted"
        gateway.queue.die()  # type: ignore[union-attr]
        (last,) = [one async for one in stream]
        assert last["error"]["code"] == "run_not_ready"


async def test_nobody_submits_to_the_stream_of_the_runs_own_data(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as gateway:
        async with submission(gateway, line("a"), "train") as response:
            error = (await response.json())["error"]
            assert (response.status, error["code"], error["param"]) == (400, "invalid_value", "stream")
        counts = await gateway.queue.status.remote()  # type: ignore[union-attr]
    assert counts["prompts_submitted"] == 0


@pytest.mark.parametrize("stream", ["", "a b", "x" * 65, "../x", "..", "-", "-x", ".x"])
async def test_a_stream_has_a_plain_name(stream: str, tmp_path: Path) -> None:
    async with local_gateway(tmp_path) as gateway, submission(gateway, line("a"), stream) as response:
        assert response.status == 400
        assert (await response.json())["error"]["param"] == "query.stream"


async def test_rows_that_the_run_has_let_go_are_told_as_such(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as gateway:
        await answers(gateway, line("a"))
        gateway.actor._rows._reader.forget(next(iter(gateway.actor._rows._reader._mappings)))
        for path in (gateway.run.path / "queue/completions").glob("*.arrow"):
            path.unlink()
        said = await answers(gateway, line("a"))
    assert said[1] == {"type": "finished", "key": "a", "group": 0, "prompt_token_ids": [], "rollouts": None}
