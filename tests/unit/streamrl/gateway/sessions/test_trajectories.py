"""`/api/trajectories` through the real gateway, queue and log: what is taken is a group, what is wrong is refused."""

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.gateway.local_gateway import local_gateway
from support.gateway.sent_trajectories import CONTEXT, GROUP_SIZE, ROUTE, body, gateway_of, offer, status_of, turn

from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.learner import LearnerConfig
from streamrl.gateway.auth import Scope
from streamrl.gateway.sessions.session_body import HEADER
from streamrl.gateway.sessions.trajectory_body import TrajectoryBody
from streamrl.types import SamplingParams


async def test_each_is_durable_and_the_last_of_its_name_makes_the_group(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as gateway:
        answers = [await offer(gateway, body(f"k{place}", reward=place / 2)) for place in range(GROUP_SIZE)]
        again = await offer(gateway, body("k0", reward=0.0))
        lease = await gateway.queue._actor._queue.trajectories.standing("k3")  # type: ignore[union-attr]
        counts = await status_of(gateway)
    waiting = {"key": "k0", "number": 0, "state": "waiting", "group_size": GROUP_SIZE, "waiting": 1}
    assert answers[0] == (200, waiting)
    gathered = {"key": "k7", "number": 7, "state": "gathered", "group_size": GROUP_SIZE, "group": 0}
    assert answers[-1] == (200, gathered)
    assert again == (200, {**gathered, "key": "k0", "number": 0})
    assert (lease.group, lease.state) == (0, "gathered")
    assert (counts["groups_ready"], counts["rows_ready"], counts["scores_ok"]) == (1, GROUP_SIZE, GROUP_SIZE)
    assert (counts["trajectories_offered"], counts["trajectories_waiting"]) == (GROUP_SIZE, 0)


async def test_a_key_that_says_something_else_the_second_time_is_refused(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as gateway:
        await offer(gateway, body("a"))
        for other in (body("a", reward=0.5), body("a", group="x"), body("a", turns=[turn(token_ids=[4, 6])])):
            status, answer = await offer(gateway, other)
            assert (status, answer["error"]["code"]) == (409, "key_reused")
        assert (await status_of(gateway))["trajectories_offered"] == 1


DRAWN = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0}
"""As rollouts of the run are."""

BAD = {
    "no key": (body(key=None), "missing_parameter", "key"),  # type: ignore[arg-type]
    "no group": (body(group=None), "missing_parameter", "group"),
    "no reward": (body(reward=None), "missing_parameter", "reward"),
    "no turns": ({"key": "a", "group": "g", "reward": 1.0}, "missing_parameter", "turns"),
    "no prompt ids": (body(turns=[turn(prompt_token_ids=None)]), "missing_parameter", "turns.0.prompt_token_ids"),
    "no ids": (body(turns=[turn(token_ids=None)]), "missing_parameter", "turns.0.token_ids"),
    "no log-probs": (body(turns=[turn(logprobs=None)]), "missing_parameter", "turns.0.logprobs"),
    "no versions": (body(turns=[turn(version_spans=None)]), "missing_parameter", "turns.0.version_spans"),
    "empty turns": (body(turns=[]), "empty_trajectory", "turns"),
    "nothing sampled": (body(turns=[turn(token_ids=[], logprobs=[])]), "empty_trajectory", "turns.0.token_ids"),
    "empty prompt": (body(turns=[turn(prompt_token_ids=[])]), "empty_prompt", "turns.0.prompt_token_ids"),
    "a log-prob too few": (body(turns=[turn(logprobs=[-1.0])]), "lengths_differ", "turns.0.logprobs"),
    "a log-prob too many": (body(turns=[turn(), turn(logprobs=[-1.0] * 3)]), "lengths_differ", "turns.1.logprobs"),
    "nan": (body(turns=[turn(logprobs=[-1.0, float("nan")])]), "non_finite", "turns.0.logprobs"),
    "infinite": (body(turns=[turn(logprobs=[float("-inf"), -1.0])]), "non_finite", "turns.0.logprobs"),
    "infinite in 32 bits": (body(turns=[turn(logprobs=[-1e39, -1.0])]), "non_finite", "turns.0.logprobs"),
    "a log-prob over 0": (body(turns=[turn(logprobs=[0.5, -1.0])]), "invalid_value", "turns.0.logprobs"),
    "a reward of nan": (body(reward=float("nan")), "non_finite", "reward"),
    "an id too high": (body(turns=[turn(token_ids=[4, 10**6])]), "token_out_of_range", "turns.0.token_ids"),
    "a prompt id too high": (body(turns=[turn(prompt_token_ids=[10**6])]), "token_out_of_range", None),
    "an id below 0": (body(turns=[turn(token_ids=[4, -1])]), "invalid_value", "turns.0.token_ids.1"),
    "no number for an id": (body(turns=[turn(token_ids=[4, "5"])]), "invalid_value", "turns.0.token_ids.1"),
    "too long": (body(turns=[turn(prompt_token_ids=[1] * (CONTEXT - 1))]), "context_length_exceeded", "turns"),
    "no version": (body(turns=[turn(version_spans=[])]), "invalid_version_spans", "turns.0.version_spans"),
    "a version too late": (body(turns=[turn(version_spans=[[1, "0.0"]])]), "invalid_version_spans", None),
    "beyond the turn": (body(turns=[turn(version_spans=[[0, "0.0"], [2, "0.0"]])]), "invalid_version_spans", None),
    "spans in no order": (
        body(turns=[turn(version_spans=[[0, "0.0"], [1, "0.0"], [1, "0.0"]])]),
        "invalid_version_spans",
        None,
    ),
    "back in time": (body(turns=[turn(version_spans=[[0, "0.1"]]), turn()]), "invalid_version_spans", "turns"),
    "no word for a version": (body(turns=[turn(version_spans=[[0, "now"]])]), "invalid_value", None),
    "never published": (body(turns=[turn(version_spans=[[0, "0.5"]])]), "unknown_version", None),
    "of another incarnation": (body(turns=[turn(version_spans=[[0, "3.0"]])]), "unknown_version", None),
    "a component": (body(components={"style": 1.0}), "wrong_components", "components"),
    "an ending": (body(finish_reason="error"), "invalid_value", "finish_reason"),
    "another temperature": (body(sampling={"temperature": 0.7}), "sampling_not_trained", "sampling.temperature"),
    "greedy": (body(sampling={"temperature": 0}), "sampling_not_trained", "sampling.temperature"),
    "the likeliest alone": (body(sampling={**DRAWN, "top_p": 0.9}), "sampling_not_trained", "sampling.top_p"),
    "the first ones alone": (body(sampling={**DRAWN, "top_k": 3}), "sampling_not_trained", "sampling.top_k"),
    "the likely alone": (body(sampling={**DRAWN, "min_p": 0.1}), "sampling_not_trained", "sampling.min_p"),
    "a temperature of nan": (body(sampling={"temperature": float("nan")}), "invalid_value", "sampling.temperature"),
    "half a top_k": (body(sampling={"top_k": 0.5}), "invalid_value", "sampling.top_k"),
    "a penalty": (body(sampling={"frequency_penalty": 1.0}), "invalid_value", "sampling.frequency_penalty"),
    "something else": (body(colour="red"), "invalid_value", "colour"),
    "a list": ([], "invalid_value", None),
    "no JSON": (b"{", "invalid_json", None),
    "half a character": (body("\ud800"), "invalid_value", "key"),
    "a long key": (body("k" * 129), "invalid_value", "key"),
}


async def test_what_cannot_be_trained_is_refused_with_a_code_and_leaves_nothing(tmp_path: Path) -> None:
    found = {}
    async with gateway_of(tmp_path) as gateway:
        for name, (said, _, param) in BAD.items():
            status, answer = await offer(gateway, said if isinstance(said, bytes) else json.dumps(said).encode())
            fault = answer["error"]
            found[name] = status, fault["code"], fault["param"] if param else None
        counts = await status_of(gateway)
    assert found == {name: (400, code, param) for name, (_, code, param) in BAD.items()}
    assert counts["trajectories_offered"] == 0


async def test_what_was_drawn_as_rollouts_are_may_say_so_and_is_the_same_trajectory(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as gateway:
        told = [await offer(gateway, said) for said in (body(), body(sampling=DRAWN), body(sampling={"top_k": 0}))]
        status, answer = await offer(gateway, body("b", sampling={"top_p": 0.9}))
        counts = await status_of(gateway)
    assert [status for status, _ in told] == [200] * 3
    assert told[0] == told[1] == told[2]
    assert counts["trajectories_offered"] == 1
    expected = "top_p is 0.9; the run trains on what is sampled with 1: sample it anew with that, or leave it out"
    assert (status, answer["error"]["message"]) == (400, expected)


def test_the_digest_of_a_trajectory_is_the_one_that_older_runs_wrote_down() -> None:
    limits = {"context": CONTEXT, "vocab_size": 100, "drawn": SamplingParams(), "components": ()}
    told = [TrajectoryBody(**said).trajectory(**limits) for said in (body(), body(sampling=DRAWN))]
    assert {one.digest for one in told} == {16069928279875978200}


async def test_a_row_may_fill_the_context(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as gateway:
        status, _ = await offer(gateway, body(turns=[turn(prompt_token_ids=[1] * (CONTEXT - 2))]))
    assert status == 200


async def test_two_of_one_name_at_once_have_names_of_their_own(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as gateway:
        told = await asyncio.gather(*(offer(gateway, body(f"k{place}")) for place in range(GROUP_SIZE)))
        reader = gateway.actor._rows._reader
        frames = [row.frame for row in (await gateway.queue.ended.remote([0]))[0].rows]  # type: ignore[union-attr]
        names = [reader.read(frame).column("rollout_id").to_pylist() for frame in frames]
    assert {status for status, _ in told} == {200}
    assert len({name for one in names for name in one}) == GROUP_SIZE


async def test_when_the_run_ends_the_client_is_told_to_come_back(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as gateway:
        await gateway.end_queue()
        status, answer = await offer(gateway, body())
        assert (status, answer["error"]["code"]) == (503, "run_not_ready")
        gateway.queue.die()  # type: ignore[union-attr]
        status, answer = await offer(gateway, body())
        assert (status, answer["error"]["code"]) == (503, "run_not_ready")


@pytest.mark.parametrize(("advantage", "code"), [("remax", "own_rollouts_only"), ("grpo", None)])
async def test_a_run_that_needs_a_greedy_rollout_in_each_group_takes_no_others(
    advantage: Any, code: str | None, tmp_path: Path
) -> None:
    async with gateway_of(tmp_path) as gateway:
        service = gateway.actor._trajectories
        learner = LearnerConfig(algorithm=AlgorithmConfig(advantage=advantage))
        config = msgspec.structs.replace(gateway.actor._config, learner=learner)
        service.__init__(config, gateway.queue, service._log, service.context, service.vocab_size)  # type: ignore[misc]
        status, answer = await offer(gateway, body())
        headers = {HEADER: "a", "authorization": f"Bearer {gateway.token()}"}
        asked = {"model": "run", "prompt": "1", "max_tokens": 2}
        status_of_call, answer_of_call = await gateway.ask("/v1/completions", asked, headers=headers)
    expected = (200, None) if code is None else (409, code)
    assert (status, answer.get("error", {}).get("code")) == expected
    assert (status_of_call, answer_of_call.get("error", {}).get("code")) == expected


@pytest.mark.parametrize("scope", [Scope.GENERATE, Scope.CONTROL])
async def test_it_wants_the_scope_of_those_who_submit(scope: Scope, tmp_path: Path) -> None:
    async with local_gateway(tmp_path) as gateway:
        headers = {"authorization": f"Bearer {gateway.token(scope)}"}
        status, answer = await gateway.ask(ROUTE, body(), headers=headers)
    assert (status, answer["error"]["code"]) == (403, "insufficient_scope")
