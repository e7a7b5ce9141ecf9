"""Sessions through the real gateway, queue and replica: an agent's calls become rows when they are rewarded."""

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from support.gateway.agent_sessions import PROMPT, call, gateway_of, ids_of, reward
from support.gateway.local_gateway import ENDLESS, LocalGateway, events, until
from support.gateway.sent_trajectories import GROUP_SIZE, SETTINGS, offer, status_of

from streamrl.buffers.rows.gather import rollout_rows
from streamrl.buffers.segments.reader import SegmentReader
from streamrl.gateway.sessions.session_body import HEADER
from streamrl.services.gateway.actor import GatewayActor


def rows_of(gateway: LocalGateway) -> Any:
    """Those of the first group that is ready, as the learner reads them."""
    group = next(iter(gateway.queue._actor._queue._index._steps._ready))  # type: ignore[union-attr]
    frames = list(dict.fromkeys(row.frame for row in group.rows.values()))
    keys = sorted(group.rows)
    rows = [group.rows[key] for key in keys]
    reader = SegmentReader(gateway.run.path)
    return rollout_rows(
        [reader.read(frame) for frame in frames],
        _array([frames.index(row.frame) for row in rows]),
        _array([row.row for row in rows]),
        _array([group.number] * len(rows)),
        _array([sample for sample, _ in keys]),
        _array([row.reward for row in rows]),
        _array([row.valid for row in rows]),
    )


def _array(values: list[Any]) -> Any:
    return np.array(values)


async def test_turns_and_a_fork_of_each_session_are_rows_of_one_group(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as gateway:
        expected = []
        for number in range(GROUP_SIZE):
            name = f"agent-{number}"
            first = await ids_of(gateway, name, seed=number)
            second_prompt = [*PROMPT, *first, 7, 8]
            second = await ids_of(gateway, name, second_prompt)
            fork = await ids_of(gateway, name, [*PROMPT, 9])
            expected += [[*second_prompt, *second], [*PROMPT, 9, *fork]]
            status, told = await reward(gateway, name, number / 8)
            assert status == 200
            assert (told["branches"], told["turns"], told["session"]) == (2, 3, name)
            assert told["state"] == ("gathered" if number == GROUP_SIZE - 1 else "waiting")
        rows = rows_of(gateway)
    bounds = rows.offsets.tolist()
    assert [rows.token_ids[a:b].tolist() for a, b in pairwise(bounds)] == expected
    assert rows.sample_index.tolist() == [number for number in range(GROUP_SIZE) for _ in range(2)]
    assert rows.rewards.tolist() == [number / 8 for number in range(GROUP_SIZE) for _ in range(2)]
    origins = rows.token_origin[: bounds[1]].tolist()
    sampled = len(expected[0]) - len(PROMPT) - 2
    assert (origins.count(0), origins.count(1), origins.count(2)) == (len(PROMPT), sampled, 2)
    assert set(rows.token_steps[rows.token_origin == 1].tolist()) == {1}
    assert (rows.rollout_logprobs[rows.token_origin == 1] < 0).all()


async def test_a_chat_names_its_session_in_its_metadata_and_may_be_streamed(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as gateway:
        await gateway.chat("1", metadata={"session_id": "a"}, max_tokens=4)
        await gateway.chat("1", metadata={"session_id": "a"}, max_tokens=4, stream=True)
        await gateway.chat("1", metadata={"user": "a"}, max_tokens=4)
        await gateway.chat("1", n=3, metadata={"session_id": "b"}, max_tokens=4)
        assert (await reward(gateway, "a"))[1]["branches"] == 2
        assert (await reward(gateway, "b"))[1]["branches"] == 3


async def test_a_reward_is_idempotent_and_stays_what_it_was(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as gateway:
        await ids_of(gateway, "a")
        first = await reward(gateway, "a", 0.5, group="g")
        again = await reward(gateway, "a", 0.5, group="g")
        assert first[0] == again[0] == 200
        assert first[1] == {**again[1], "branches": 1, "turns": 1}
        for value, group in ((0.25, "g"), (0.5, "h"), (0.5, None)):
            status, answer = await reward(gateway, "a", value, **({} if group is None else {"group": group}))
            assert (status, answer["error"]["code"]) == (409, "already_rewarded")
        status, answer = await call(gateway, "a")
        assert (status, answer["error"]["code"]) == (409, "session_ended")
        assert (await status_of(gateway))["trajectories_offered"] == 1


async def test_a_reward_outlives_the_gateway_and_what_has_none_does_not(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as gateway:
        await ids_of(gateway, "a")
        await ids_of(gateway, "b")
        first = await reward(gateway, "a", 0.5)
        reborn(gateway.actor)
        again = await reward(gateway, "a", 0.5)
        assert (again[0], again[1]["number"]) == (200, first[1]["number"])
        assert (await reward(gateway, "a", 0.6))[1]["error"]["code"] == "already_rewarded"
        status, answer = await reward(gateway, "b")
        assert (status, answer["error"]["code"]) == (404, "session_not_found")


def reborn(actor: GatewayActor) -> None:
    """Its sessions are those of a gateway that was just started."""
    actor._sessions._held.clear()


async def test_sessions_of_one_group_name_are_one_group_whatever_their_prompts(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as gateway:
        states = []
        for number in range(GROUP_SIZE):
            await ids_of(gateway, f"{number}", [1, number + 1])
            states.append((await reward(gateway, f"{number}", group="task-17"))[1]["state"])
            await ids_of(gateway, f"alone-{number}", [1, number + 1])
            assert (await reward(gateway, f"alone-{number}"))[1]["state"] == "waiting"
    assert states == ["waiting"] * (GROUP_SIZE - 1) + ["gathered"]


async def test_a_session_that_runs_is_not_rewarded_and_one_whose_client_left_keeps_the_rest(tmp_path: Path) -> None:
    async with gateway_of(tmp_path, **ENDLESS) as gateway:
        running = asyncio.ensure_future(call(gateway, "a"))
        await gateway.busy()
        assert (await reward(gateway, "a"))[1]["error"]["code"] == "session_not_found"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        sessions = gateway.actor._sessions
        await until(lambda: not sessions._held["a"].running)
        assert (await reward(gateway, "a"))[1]["error"]["code"] == "session_not_found"


async def test_of_a_stream_that_its_client_left_in_the_middle_nothing_is_kept(tmp_path: Path) -> None:
    async with gateway_of(tmp_path, **ENDLESS) as gateway:
        headers = {"authorization": f"Bearer {gateway.token()}", HEADER: "a"}
        body = {"model": "run", "prompt": PROMPT, "max_tokens": 10**5, "stream": True}
        async with gateway.http.post(gateway.url + "/v1/completions", json=body, headers=headers) as response:
            first = await anext(events(response))
            assert first["choices"][0]["streamrl"]["token_ids"]
        held = gateway.actor._sessions._held["a"]
        await until(lambda: not held.running)
        assert held.session.branches() == []
        assert (await reward(gateway, "a"))[1]["error"]["code"] == "session_not_found"


async def test_each_completion_of_a_call_stands_behind_its_own_prompt(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as gateway:
        await call(gateway, "a", [[1, 2], [1, 3]], n=2)
        branches = gateway.actor._sessions._held["a"].session.branches()
    assert [branch.turns[0].prompt_ids for branch in branches] == [[1, 2], [1, 2], [1, 3], [1, 3]]


@pytest.mark.parametrize(
    ("said", "param"),
    [
        ({"temperature": 0.7}, "temperature"),
        ({"top_p": 0.5}, "top_p"),
        ({"top_k": 3}, "top_k"),
        ({"min_p": 0.1}, "min_p"),
    ],
)
async def test_what_is_sampled_otherwise_than_rollouts_are_is_refused(said: Any, param: str, tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as gateway:
        status, answer = await call(gateway, "a", **said)
        assert (status, answer["error"]["code"], answer["error"]["param"]) == (400, "sampling_not_trained", param)
        assert (await call(gateway, None, **said))[0] == 200
        same = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0}
        assert (await call(gateway, "a", **same))[0] == 200


async def test_a_run_may_draw_as_its_rollouts_are_what_an_agent_asks_for_otherwise(tmp_path: Path) -> None:
    settings = msgspec.structs.replace(SETTINGS, session_sampling="run")
    async with gateway_of(tmp_path, settings=settings) as gateway:
        assert (await call(gateway, "a", temperature=0, top_p=0.5))[0] == 200
        assert (await reward(gateway, "a"))[0] == 200


async def test_a_session_of_more_branches_than_a_file_holds_is_refused(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as gateway:
        log = gateway.actor._trajectories._log
        queue = msgspec.structs.replace(log._config.queue, segment_bytes=2**14)
        log._config = msgspec.structs.replace(log._config, queue=queue)
        for name, n in (("wide", 64), ("narrow", 2)):
            await call(gateway, name, n=n)
        status, answer = await reward(gateway, "wide")
        assert (status, answer["error"]["code"]) == (400, "trajectory_too_long")
        assert "64 branches" in answer["error"]["message"]
        assert (await reward(gateway, "narrow"))[0] == 200


async def test_a_reward_whose_answer_was_lost_ends_the_session_when_it_comes_again(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as gateway:
        await ids_of(gateway, "a")
        assert (await reward(gateway, "a"))[0] == 200
        reborn(gateway.actor)
        gateway.actor._sessions._gone.clear()
        await ids_of(gateway, "a")  # of a gateway that does not know of it
        assert (await reward(gateway, "a"))[1]["number"] == 0
        assert (await call(gateway, "a"))[1]["error"]["code"] == "session_ended"


@pytest.mark.parametrize("name", ["", "a b", "x" * 129, "../x", "ä"])
async def test_a_session_has_a_plain_name(name: str, tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as gateway:
        status, answer = await gateway.chat("1", metadata={"session_id": name})
        assert (status, answer["error"]["param"]) == (400, "metadata.session_id")
        status, answer = await gateway.chat("1", metadata={"session_id": 7})
        assert (status, answer["error"]["param"]) == (400, "metadata.session_id")


async def test_a_request_has_one_session(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as gateway:
        status, answer = await call(gateway, "a", metadata={"session_id": "b"})
        assert (status, answer["error"]["code"]) == (400, "invalid_value")
        assert (await call(gateway, "a", metadata={"session_id": "a"}))[0] == 200


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({}, "missing_parameter"),
        ({"reward": "much"}, "invalid_value"),
        ({"reward": float("nan")}, "non_finite"),
        ({"reward": 1.0, "group": ""}, "invalid_value"),
        ({"reward": 1.0, "components": {"style": 1.0}}, "wrong_components"),
        ({"reward": 1.0, "more": 1}, "invalid_value"),
    ],
)
async def test_what_is_no_reward_is_refused_and_the_session_goes_on(said: Any, code: str, tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as gateway:
        await ids_of(gateway, "a")
        status, answer = await gateway.ask("/api/sessions/a/reward", said)
        assert (status, answer["error"]["code"]) == (400, code)
        await ids_of(gateway, "a")
        assert (await reward(gateway, "a"))[1]["branches"] == 2


async def test_a_session_that_grew_too_old_is_refused_and_stays(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as gateway:
        await ids_of(gateway, "a")
        index = gateway.queue._actor._queue._index  # type: ignore[union-attr]
        index.start_at(50, 0)
        status, answer = await reward(gateway, "a")
        assert (status, answer["error"]["code"]) == (409, "too_stale")
        assert "of step 1, and the learner is at step 50" in answer["error"]["message"]
        assert (await call(gateway, "a"))[0] == 200


async def test_real_tokens_wanted_for_made_ones_too(tmp_path: Path) -> None:
    """What a session's answers say is what `/api/trajectories` takes."""
    async with gateway_of(tmp_path) as gateway:
        _, answer = await call(gateway, None)
        said = answer["choices"][0]["streamrl"]
        turn = {"prompt_token_ids": answer["streamrl"]["prompt_token_ids"][0], **said}
        body = {"key": "a", "group": "g", "reward": 1.0, "turns": [turn]}
        status, told = await offer(gateway, body)
    assert (status, told["state"]) == (200, "waiting")
