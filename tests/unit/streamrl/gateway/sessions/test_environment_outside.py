"""The same environment inside a run and outside, by OpenAI's client at the gateway, comes to equal rows."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import openai
from support.environments.games import Helper
from support.gateway.agent_sessions import CALLS, gateway_of
from support.gateway.local_gateway import LocalGateway
from support.repository import TESTS

from streamrl.clock import SystemClock
from streamrl.conversations.branches import Branch
from streamrl.engines.build import build_engine
from streamrl.environments.chat import Chat
from streamrl.environments.driven.drive import TurnRequests, driven
from streamrl.environments.episode import EpisodeLimits, Rollout
from streamrl.environments.play import EndedEpisode, Player
from streamrl.environments.processes.pool import EnvironmentPool
from streamrl.environments.processes.worker import WorkerSettings
from streamrl.gateway.sessions.session_body import HEADER
from streamrl.ids import turn_seed
from streamrl.models.chat_template import load_chat_template
from streamrl.models.tokenizer import load_tokenizer
from streamrl.services.rollout.actor import RolloutReplica
from streamrl.types import FinishReason, GenerationRequest, SamplingParams, UpdateMode

MOST = 12
RUN_SEED = 5


async def played_outside(gateway: LocalGateway, rollout: str) -> Branch:
    """By a client who has nothing but the environment's class, and the seeds."""
    environment = Helper()
    messages: list[Any] = await environment.reset({})
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.token(), max_retries=0) as client:
        answer: Any = []
        for turn in range(5):
            messages += answer
            said = await client.chat.completions.create(
                model="run",
                messages=messages,
                tools=environment.tools,
                max_tokens=MOST,
                seed=turn_seed(RUN_SEED, rollout, turn),
                extra_headers={HEADER: "outside"},
            )
            message = said.choices[0].message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True)
            messages.append(message)
            answer = await environment.step(message)
    (branch,) = gateway.actor._sessions.take("outside").branches()
    return branch


async def played_inside(replica: RolloutReplica, folder: Path) -> tuple[str, Branch]:
    """As a replica plays it, on an engine of its own: the first rollout that comes to its end, and its row."""
    tokenizer, template = load_tokenizer(folder), load_chat_template(folder)
    assert template is not None
    engine = build_engine(replica._config, folder, 1000)
    engine.load_weights({}, replica._state.version, UpdateMode.KEEP)
    settings = WorkerSettings(name="support.environments.games:Helper", memory_bytes=2**31, import_paths=[str(TESTS)])
    limits = EpisodeLimits(max_turns=9, max_tokens=10**4, context=10**4, timeout_s=60.0)
    sampling = SamplingParams(max_new_tokens=MOST)
    async with EnvironmentPool(settings) as pool:
        chat = Chat(tokenizer, template)
        player = Player(pool, limits, chat, SystemClock(), retries=0, truncated_reward=0.0, tell=print)
        for number in range(100):
            name = f"p.{number}/1"
            request = GenerationRequest(name, tokenizer.encode("1"), 0, sampling, tokenizer.eos_token_ids)
            ended = await driven(engine, partial(played, player, Rollout(request, "1", {}, RUN_SEED)))
            if ended.finish_reason is FinishReason.STOP:
                engine.close()
                (branch,) = ended.branches
                return name, branch
    raise AssertionError("none of a hundred episodes came to its end")


async def played(player: Player, rollout: Rollout, requests: TurnRequests) -> EndedEpisode:
    return await player.play(rollout, requests.generate)


async def test_the_rows_are_equal_to_the_bit(tmp_path: Path) -> None:
    async with gateway_of(tmp_path, **CALLS, most=64) as gateway:
        rollout, inside = await played_inside(gateway.replicas["rollout-0"], tmp_path / "model")
        outside = await played_outside(gateway, rollout)
    assert len(inside.turns) == 5
    assert any("tool_call" in text for text in texts_of(inside, tmp_path / "model"))
    for ours, theirs in zip(inside.turns, outside.turns, strict=True):
        assert list(ours.prompt_ids) == list(theirs.prompt_ids)
        assert list(ours.token_ids) == list(theirs.token_ids)
        assert list(ours.logprobs) == list(theirs.logprobs)
        assert [tuple(span) for span in ours.spans] == [tuple(span) for span in theirs.spans]


def texts_of(branch: Branch, folder: Path) -> list[str]:
    tokenizer = load_tokenizer(folder)
    return [tokenizer.decode(np.array(turn.token_ids, np.int32)) for turn in branch.turns]
