"""Several agents in one episode: conversations, rows and rewards of their own."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.environments.spoken import TOOLS, Model, chat_of, rollout_of
from support.repository import TESTS

from streamrl.clock import SystemClock
from streamrl.environments.base import Done, ToAgent
from streamrl.environments.episode import EpisodeLimits
from streamrl.environments.outcomes import EnvironmentFault, addressed, verdict_of
from streamrl.environments.play import EndedEpisode, Player
from streamrl.environments.processes.pool import EnvironmentPool
from streamrl.environments.processes.worker import WorkerSettings
from streamrl.environments.word_chain import WordChain
from streamrl.types import FinishReason

LIMITS = EpisodeLimits(max_turns=6, max_tokens=4000, context=2000, timeout_s=60.0)
NOT_A_WORD = "??"


async def played(
    folder: Path, *texts: str, name: str = "word_chain", **changes: Any
) -> tuple[EndedEpisode, Model, list]:
    chat, tokenizer = chat_of(folder, TOOLS)
    told: list[str] = []
    limits = EpisodeLimits(**{**{field: getattr(LIMITS, field) for field in LIMITS.__slots__}, **changes})
    settings = WorkerSettings(name=name, memory_bytes=2**31, import_paths=[str(TESTS)])
    async with EnvironmentPool(settings, timeout_s=20.0) as pool:
        player = Player(pool, limits, chat, SystemClock(), retries=0, truncated_reward=-1.0, tell=told.append)
        model = Model(tokenizer, texts)
        rollout = rollout_of(tokenizer, "12", most=200)
        return await player.play(rollout, model), model, told


def record_of(ended: EndedEpisode, place: int) -> dict[str, Any]:
    return json.loads(ended.payload("{}", place))["environment"]


async def test_each_has_a_conversation_a_row_and_a_reward_of_its_own(tmp_path: Path) -> None:
    ended, model, _ = await played(tmp_path, "apple", "egg", "glass", NOT_A_WORD)
    assert ended.finish_reason is FinishReason.STOP
    assert list(ended.agents) == ["first", "second"]
    assert [len(branch.turns) for branch in ended.branches] == [2, 2]
    assert ended.forks == 0
    assert [(record_of(ended, place)["agent"], record_of(ended, place)["reward"]) for place in range(2)] == [
        ("first", 1.0),
        ("second", 0.0),
    ]
    assert record_of(ended, 0)["components"] == {"words": 3.0}
    assert json.loads(ended.payload("{}"))["environment"]["reward"] == 0.5
    _, tokenizer = chat_of(tmp_path, TOOLS)
    texts = [tokenizer.decode(np.array(request.prompt_ids)) for request in model.asked]
    assert "begins with the letter 'a'" in texts[0]
    assert "The word before is 'apple'" in texts[1]
    assert "apple" in texts[2]  # its own word, in its own conversation
    assert "The word before is 'egg'" in texts[2]
    assert "The word before is 'apple'" not in texts[2]
    assert "glass" in texts[3]
    assert "The word before is 'egg'" not in texts[3]
    # What is sampled stands behind the prompt of the one who said it.
    for branch, own in zip(ended.branches, ((0, 2), (1, 3)), strict=True):
        assert branch.turns[0].prompt_ids == model.asked[own[0]].prompt_ids.tolist()
    assert len({request.seed for request in model.asked}) == 4


async def test_limits_hold_for_all_of_them_together(tmp_path: Path) -> None:
    ended, *_ = await played(tmp_path, "apple", "egg", "glass", max_turns=3)
    assert ended.record is not None
    assert (ended.record.limit, ended.record.turns, ended.record.reward) == ("max_turns", 3, 0.5)
    assert [record_of(ended, place)["reward"] for place in range(2)] == [0.5, 0.5]
    whole, *_ = await played(tmp_path, "apple", "egg", "glass", NOT_A_WORD)
    tokens = sum(branch.num_tokens for branch in whole.branches)
    cut, *_ = await played(tmp_path, "apple", "egg", "glass", NOT_A_WORD, max_tokens=tokens - 1)
    assert cut.record is not None
    assert cut.record.limit in ("max_tokens", "max_new_tokens")
    assert sum(branch.num_tokens for branch in cut.branches) < tokens


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Forgotten", "its rewards are of left, and left, right spoke"),
        ("Alone", "its rewards are of left, and one without a name spoke"),
        ("Nameless", "the agent is '', not a name"),
    ],
)
async def test_rewards_and_names_that_do_not_fit_are_the_environments_fault(
    tmp_path: Path, name: str, said: str
) -> None:
    ended, _, told = await played(tmp_path, "a", "b", name=f"support.environments.several:{name}")
    assert ended.finish_reason is FinishReason.ERROR
    assert said in told[0]


async def test_agents_that_share_a_reward(tmp_path: Path) -> None:
    ended, *_ = await played(tmp_path, "a", "b", name="support.environments.several:Together")
    assert [record_of(ended, place) for place in range(2)] == [
        {"agent": "left", "final": "b", "reward": 0.75, "turns": 2},
        {"agent": "right", "final": "b", "reward": 0.75, "turns": 2},
    ]


def test_what_goes_over_the_wire() -> None:
    assert addressed(ToAgent("a", "hi"), "x") == ("a", [{"role": "user", "content": "hi"}])
    assert addressed("hi", "x") == ("", [{"role": "user", "content": "hi"}])
    assert verdict_of(Done(rewards={"a": True}), "x").rewards == {"a": 1.0}
    with pytest.raises(EnvironmentFault, match="the reward of 'a' is nan"):
        verdict_of(Done(rewards={"a": float("nan")}), "x")


@pytest.mark.parametrize(
    ("words", "winner"),
    [
        (["tea"], "second"),
        (["apple", "apple"], "first"),
        (["apple", "egg", "gem"], "second"),
        (["APPLE ", "tea"], "first"),
    ],
)
def test_who_wins_a_word_chain(words: list[str], winner: str) -> None:
    game = WordChain()
    game.reset({"seed": 0})
    *before, last = [game.step({"content": word}) for word in words]
    assert all(isinstance(one, ToAgent) for one in before)
    assert isinstance(last, Done)
    assert last.rewards[winner] == 1.0
    assert sum(last.rewards.values()) == 1.0
