"""The newest rollouts as a page shows them, through the real gateway, queue, replica and reward stage."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from support.gateway.kept_figures import step_figures
from support.gateway.local_gateway import LocalGateway, local_gateway
from support.gateway.submitted_prompts import GROUP_SIZE, answers, gateway_of, line

from streamrl.config import Config
from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.learner import LearnerConfig, OverlongConfig
from streamrl.config.schema.rollout import RolloutConfig, SamplingConfig
from streamrl.gateway.page.samples import cursor_of, group_advantages, place_of
from streamrl.gateway.refusal import Refusal
from streamrl.observability.token_figures import line_of
from streamrl.services.gateway.training.samples import MOST

FIELDS = {
    *("group", "sample", "branch", "stream", "step", "version_spans", "prompt", "completion", "token_ids", "tokens"),
    *("logprobs", "advantage", "reward", "finish_reason", "replica", "components", "oddities"),
    *("entropy", "mismatch", "mask", "lacks"),
}


async def samples(gateway: LocalGateway, **params: Any) -> dict[str, Any]:
    query = "&".join(f"{name}={value}" for name, value in params.items())
    status, answer = await gateway.ask(f"/api/samples?{query}")
    assert status == 200, answer
    return answer


async def test_the_newest_rollouts_are_told_with_all_that_is_known_of_them(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as gateway:
        assert await samples(gateway) == {"samples": [], "next": None}
        said = await answers(gateway, line("a"))
        said += await answers(gateway, line("b", "2+3=", answer="5"), "agents")
        page = await samples(gateway)
    finished = {one["group"]: one for one in said if one["type"] == "finished"}
    assert page["next"] is None
    assert [one["group"] for one in page["samples"]] == [1] * GROUP_SIZE + [0] * GROUP_SIZE
    assert [one["sample"] for one in page["samples"]] == [*range(GROUP_SIZE)] * 2
    for one in page["samples"]:
        assert set(one) == FIELDS
        rollout = finished[one["group"]]["rollouts"][one["sample"]]
        for name in ("token_ids", "logprobs", "version_spans", "reward", "finish_reason", "branch"):
            assert one[name] == rollout[name], name
        assert (one["completion"], one["step"]) == (rollout["text"], None)
        assert len(one["tokens"]) == len(one["token_ids"])
        assert "".join(one["tokens"]) == one["completion"]
    assert {(one["stream"], one["prompt"]) for one in page["samples"]} == {("clients", "1+1="), ("agents", "2+3=")}
    for start in (0, GROUP_SIZE):
        rewards = np.array([one["reward"] for one in page["samples"][start : start + GROUP_SIZE]])
        told = [one["advantage"] for one in page["samples"][start : start + GROUP_SIZE]]
        varied = rewards.std() > 0
        expected = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6) if varied else 0 * rewards
        np.testing.assert_allclose(told, expected)


async def test_pages_follow_each_other_and_a_step_is_told_once_it_trained_the_group(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as gateway:
        await answers(gateway, b"".join(line(f"k{number}") for number in range(8)))
        everything = (await samples(gateway, limit=MOST))["samples"]
        assert len(everything) == 8 * GROUP_SIZE
        pieces, before = [], ""
        while before is not None:
            page = await samples(gateway, limit=7, before=before)
            pieces += page["samples"]
            before = page["next"]
        assert pieces == everything
        queue = gateway.queue
        assert queue is not None
        lease = await queue.lease.remote(0)
        await queue.commit.remote(0)
        trained = (await samples(gateway, limit=MOST))["samples"]
        batch = set(lease.group.tolist())
        assert {one["group"] for one in trained if one["step"] == 0} == batch
        assert {one["step"] for one in trained if one["group"] not in batch} <= {None}


async def test_what_the_learner_kept_of_a_trained_row_is_laid_over_its_tokens(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as gateway:
        await answers(gateway, b"".join(line(f"k{number}") for number in range(8)))
        queue = gateway.queue
        assert queue is not None
        lease = await queue.lease.remote(0)
        await queue.commit.remote(0)
        before = {key(one): one for one in (await samples(gateway, limit=MOST))["samples"]}
        trained = [name for name, one in before.items() if one["step"] == 0]
        assert {before[name]["lacks"] for name in trained} == {"not_kept"}
        assert {one["lacks"] for one in before.values() if one["step"] is None} <= {"not_trained"}
        keep(gateway, lease, row=0, logprob=-0.5)
        after = {key(one): one for one in (await samples(gateway, limit=MOST))["samples"]}
    chosen = (int(lease.group[0]), int(lease.sample_index[0]), int(lease.branch[0]))
    told, count = after[chosen], int(lease.sampled_tokens[0])
    assert told["lacks"] is None
    assert told["mismatch"] == pytest.approx([-0.5 - logprob for logprob in told["logprobs"]], abs=1e-6)
    assert told["entropy"] == [0.5] * count
    assert told["mask"][:2] == [[0, "trained"], [1, "clipped"]]
    assert told["advantage"] == -5.0, "as the learner had it, and not as it follows from the rewards"
    assert [after[name] for name in after if name != chosen] == [before[name] for name in before if name != chosen]


def key(one: dict[str, Any]) -> tuple[int, int, int]:
    return one["group"], one["sample"], one["branch"]


def keep(gateway: LocalGateway, lease: Any, *, row: int, logprob: float) -> None:
    """Have the learner keep one row of a batch."""
    frame, count = lease.frames[lease.frame_index[row]], int(lease.sampled_tokens[row])
    figures = step_figures(lease.step, [(frame.path, frame.offset, int(lease.row[row]), [logprob] * count)])
    gateway.run.tokens_path.mkdir()
    (gateway.run.tokens_path / "rank-0.jsonl").write_bytes(line_of(figures))


async def test_figures_that_do_not_fit_a_row_are_not_laid_over_it(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as gateway:
        await answers(gateway, b"".join(line(f"k{number}") for number in range(8)))
        assert gateway.queue is not None
        lease = await gateway.queue.lease.remote(0)
        await gateway.queue.commit.remote(0)
        lease.sampled_tokens[0] += 1
        keep(gateway, lease, row=0, logprob=-0.5)
        page = await samples(gateway, limit=MOST)
        assert {one["lacks"] for one in page["samples"] if one["step"] == 0} == {"not_kept"}


async def test_rows_that_the_run_has_let_go_are_left_out(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as gateway:
        await answers(gateway, line("a"))
        reader = gateway.actor._rows._reader
        reader.forget(next(iter(reader._mappings)))
        for path in (gateway.run.path / "queue/completions").glob("*.arrow"):
            path.unlink()
        assert await samples(gateway) == {"samples": [], "next": None}


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "query.limit"),
        ("limit=201", "query.limit"),
        ("limit=-1", "query.limit"),
        ("limit=x", "query.limit"),
        ("before=x", "query.before"),
        ("before=1", "query.before"),
        ("before=-1.2", "query.before"),
        ("before=1.2.3", "query.before"),
        (f"before={'1' * 41}", "query.before"),
        ("before=%D9%A1.1", "query.before"),
    ],
)
async def test_what_no_page_has_is_refused(query: str, param: str, tmp_path: Path) -> None:
    async with local_gateway(tmp_path) as gateway:
        status, answer = await gateway.ask(f"/api/samples?{query}")
        assert (status, answer["error"]["code"], answer["error"]["param"]) == (400, "invalid_value", param)


async def test_a_queue_that_is_gone_is_said_so(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as gateway:
        assert gateway.queue is not None
        gateway.queue.die()
        status, answer = await gateway.ask("/api/samples")
        assert (status, answer["error"]["code"]) == (503, "run_not_ready")


def configured(advantage: str = "grpo", **algorithm: Any) -> Config:
    learner = LearnerConfig(algorithm=AlgorithmConfig(advantage=advantage, **algorithm))  # type: ignore[arg-type]
    return Config(learner=learner, rollout=RolloutConfig(sampling=SamplingConfig(max_new_tokens=10)))


def test_advantages_are_those_of_the_runs_estimator_and_none_where_it_looks_at_more() -> None:
    rewards, tokens = [1.0, 0.0, None, 0.5], [3, 3, 3, 3]
    assert group_advantages(rewards, tokens, configured("dr_grpo")) == [0.5, -0.5, None, 0.0]
    assert group_advantages(rewards, tokens, configured("rloo")) == [0.75, -0.75, None, 0.0]
    for name in ("gae", "reinforce_pp", "remax"):
        assert group_advantages(rewards, tokens, configured(name)) == [None] * 4
    assert group_advantages(rewards, tokens, configured(kl_coef=0.1, kl_in="reward")) == [None] * 4
    assert group_advantages(rewards, tokens, configured(loss="opd")) == [None] * 4
    assert group_advantages([None, None], [3, 3], configured()) == [None, None]


def test_a_reward_falls_near_the_end_of_the_budget_as_in_training() -> None:
    config = configured("dr_grpo")
    overlong = msgspec.structs.replace(config.learner, overlong=OverlongConfig(buffer=4, penalty=1.0))
    config = msgspec.structs.replace(config, learner=overlong)
    assert group_advantages([1.0, 1.0], [5, 10], config) == [0.5, -0.5]


def test_a_cursor_names_the_place_that_it_was_made_of() -> None:
    assert place_of(cursor_of(17, 3)) == (17, 3)
    with pytest.raises(Refusal, match="no place in the samples"):
        place_of("1." + "9" * 10)
