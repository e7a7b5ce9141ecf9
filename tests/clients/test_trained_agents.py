"""An agent of each dialect at a live run: what it is rewarded for, the model learns, by the key of a session alone."""

import asyncio
import statistics
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import aiohttp
import openai
import pytest
from service_parts.dialects import write_chat_model
from support.runs.live_run import LiveRun, live_run

import streamrl
from streamrl.client.client import Client
from streamrl.services.run.folder import RunFolder

pytestmark = [pytest.mark.skipif(find_spec("anthropic") is None, reason="make test-clients"), pytest.mark.ray]

TOKENS, SIZE, GROUPS = 6, 4, 8
STEPS = 24
"""After which the test ends the run: an agent whose run ends by itself is refused, in the middle of a call."""
LEAST = 0.15
"""By which the mean reward of an agent's last third is above its first third's. Seen: from 0.46 to 0.86."""
LEARNED = frozenset("01234")
"""What a completion is rewarded for: the share of these in it."""
PROMPT = "1+1="
ONLY_AGENTS = (
    *("--rollout.group_size", str(SIZE), "--rollout.sampling.max_new_tokens", str(TOKENS)),
    *("--learner.groups_per_step", str(GROUPS), "--learner.steps", "100000", "--learner.max_staleness", "4"),
    *("--eval.every", "100000", "--gateway.enabled", "true", "--gateway.max_prompt_tokens", "24"),
    *("--gateway.stream_weights", "{ train = 0.0 }", "--model.preset", "none", "--rollout.replicas", "1"),
)
Say = Callable[[str, str, str], Awaitable[str]]
"""(URL, key of a session, name of the model) to the text that was sampled."""


async def by_chat(url: str, key: str, model: str) -> str:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
        said = await client.chat.completions.create(
            model=model, max_tokens=TOKENS, messages=[{"role": "user", "content": PROMPT}]
        )
    return said.choices[0].message.content or ""


async def by_responses(url: str, key: str, model: str) -> str:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
        said = await client.responses.create(model=model, max_output_tokens=TOKENS, input=PROMPT, store=False)
    return said.output_text


async def by_messages(url: str, key: str, model: str) -> str:
    import anthropic

    async with anthropic.AsyncAnthropic(base_url=url, api_key=key, max_retries=0) as client:
        said = await client.messages.create(
            model=model, max_tokens=TOKENS, messages=[{"role": "user", "content": PROMPT}]
        )
    return "".join(block.text for block in said.content if block.type == "text")


async def by_ids(url: str, key: str, model: str) -> str:
    headers = {"authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(headers=headers, raise_for_status=True) as http:
        async with http.post(f"{url}/tokenize", json={"model": model, "prompt": PROMPT}) as response:
            ids = (await response.json())["tokens"]
        asked = {"token_ids": ids, "sampling_params": {"max_tokens": TOKENS}}
        async with http.post(f"{url}/inference/v1/generate", json=asked) as response:
            sampled = (await response.json())["choices"][0]["token_ids"]
        async with http.post(f"{url}/detokenize", json={"model": model, "tokens": sampled}) as response:
            return str((await response.json())["prompt"])


AGENTS: dict[str, Say] = {"chat": by_chat, "responses": by_responses, "messages": by_messages, "generate": by_ids}


class Played:
    """Rewards by agent, in the order in which they were given."""

    def __init__(self) -> None:
        self.rewards: dict[str, list[float]] = defaultdict(list)

    async def play(self, name: str, say: Say, url: str, run: RunFolder, client: Client) -> None:
        """Group after group, until the run takes no more."""
        group = 0
        while True:
            group += 1
            await asyncio.gather(
                *(self._episode(name, say, url, run, client, f"{name}-{group}", place) for place in range(SIZE))
            )

    async def _episode(
        self, name: str, say: Say, url: str, run: RunFolder, client: Client, group: str, place: int
    ) -> None:
        session = f"{group}-{place}"
        begun = await client._ask("POST", "/api/sessions", {"session_id": session})
        said = await say(url, begun["api_key"], run.name)
        reward = sum(letter in LEARNED for letter in said) / TOKENS
        await client.reward(session, reward, group=group)
        self.rewards[name].append(reward)


@pytest.fixture
def run(user_folder: Path, streamrl_path: Path, tmp_path: Path) -> Iterator[LiveRun]:
    write_chat_model(tmp_path / "model")
    own = ("--model.path", str(tmp_path / "model"))
    with live_run(user_folder, streamrl_path, "agents", *ONLY_AGENTS, *own) as run:
        assert run.read_until(lambda event: event["kind"] == "gateway"), run.end()
        assert run.read_until(lambda event: bool(event.get("replicas"))), run.end()
        yield run


@pytest.mark.timeout(600)
async def test_an_agent_of_each_dialect_learns_what_it_is_rewarded_for(run: LiveRun) -> None:
    folder, url = RunFolder.open(run.folder), run.events_of("gateway")[-1]["url"]
    played = Played()
    async with streamrl.connect(run.folder) as client:
        playing = [asyncio.create_task(played.play(name, say, url, folder, client)) for name, say in AGENTS.items()]
        trained = asyncio.create_task(asyncio.to_thread(run.until_step, STEPS))
        await asyncio.wait([trained, *playing], return_when=asyncio.FIRST_COMPLETED)
        broken = [task.exception() for task in playing if task.done()]
        for task in playing:
            task.cancel()
    run.process.kill()  # else the thread reads on, where an agent broke
    assert broken == []
    await trained
    assert played.rewards.keys() == AGENTS.keys()
    for name, rewards in played.rewards.items():
        third = len(rewards) // 3
        before, after = statistics.mean(rewards[:third]), statistics.mean(rewards[-third:])
        assert after > before + LEAST, (name, len(rewards), before, after)
