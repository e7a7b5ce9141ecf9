"""What a replica asks its engine for, of prompts that clients submitted."""

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from msgspec.structs import replace
from support.runs.probe_parts import Handle, with_replica

from streamrl.config import Config
from streamrl.config.schema.rollout import RolloutConfig, ScriptedConfig
from streamrl.config.schema.run import ModelConfig, QueueConfig
from streamrl.config.schema.streams import TASK
from streamrl.models.load import prepare_model_folder
from streamrl.services.rollout.actor import RolloutReplica
from streamrl.services.run.folder import RunFolder
from streamrl.tasks.base import Prompt, StreamPrompt
from streamrl.types import FinishReason, GenerationResult, Ticket, Version
from streamrl.weights.shm.shm import ShmPublisher

GROUP_SIZE = 2
OF_TASK = Ticket(4, 3, 0, 0, 9)
OF_CLIENT = Ticket(5, 0, 0, 0, 9, submitted=True)
CANCELLED = Ticket(6, 1, 0, 0, 9, submitted=True)
PROMPTS = [StreamPrompt("agents", Prompt("c0ffee", "2+3=", '{"answer":"5"}')), None]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    prepare_model_folder(ModelConfig(preset="tiny-qwen3"), 0, tmp_path / "model")
    return Config(
        model=ModelConfig(path=str(tmp_path / "model")),
        rollout=RolloutConfig(engine="scripted", group_size=GROUP_SIZE),
        queue=QueueConfig(durability="memory", segment_bytes=2**20),
    )


def submitted_prompts(items: list[int]) -> list[StreamPrompt | None]:
    return [PROMPTS[item] for item in items]


def results_of(replica: RolloutReplica) -> asyncio.Queue[GenerationResult]:
    """What its engine ends from now on."""
    told: asyncio.Queue[GenerationResult] = asyncio.Queue()
    replica._thread._deliver = lambda results, idle: [
        replica._loop.call_soon_threadsafe(told.put_nowait, one) for one in results
    ]
    return told


def test_a_submitted_prompt_is_asked_for_under_its_own_name_and_a_cancelled_one_not_at_all(
    config: Config, tmp_path: Path
) -> None:
    async def use(replica: RolloutReplica, run: RunFolder) -> None:
        replica._requests._queue = Handle(prompts=submitted_prompts)
        asked = await replica._requests.of([OF_TASK, OF_CLIENT, CANCELLED])
        assert [issued.ticket.number for issued, _ in asked] == [4, 4, 5, 5]
        issued, request = asked[2]
        assert request.request_id == "c0ffee.0/0"
        assert (issued.stream, issued.prompt_id, issued.payload) == ("agents", "c0ffee", '{"answer":"5"}')
        assert asked[0][0].stream == TASK
        prompts = replica._requests._prompts
        assert request.prompt_ids.tolist() == prompts.of(Prompt("", "2+3="))[1].tolist()
        assert asked[0][1].prompt_ids.tolist() == prompts.at(3)[1].tolist()
        assert len({request.seed for _, request in asked}) == 4

    asyncio.run(with_replica(config, tmp_path / "run", use))


def test_without_a_submitted_prompt_the_queue_is_not_asked(config: Config, tmp_path: Path) -> None:
    async def use(replica: RolloutReplica, run: RunFolder) -> None:
        replica._requests._queue = Handle()  # answers nothing, ever
        assert len(await replica._requests.of([OF_TASK])) == GROUP_SIZE

    asyncio.run(with_replica(config, tmp_path / "run", use))


def test_the_rollouts_of_a_group_that_was_given_up_are_aborted_and_no_others(config: Config, tmp_path: Path) -> None:
    async def use(replica: RolloutReplica, run: RunFolder) -> None:
        replica._requests._queue = Handle(prompts=submitted_prompts)
        told = results_of(replica)
        asked = await replica._requests.of([OF_TASK, OF_CLIENT])
        await replica._rollouts.begin(asked, lambda: replica._state.version)
        await replica.abort_groups([OF_CLIENT.number, 17])
        ended = [await told.get() for _ in range(GROUP_SIZE)]
        assert {one.request_id for one in ended} == {"c0ffee.0/0", "c0ffee.0/1"}
        assert {one.finish_reason for one in ended} == {FinishReason.ABORT}

    endless = replace(config.rollout, scripted=ScriptedConfig(latency_steps=10**6))
    asyncio.run(with_replica(replace(config, rollout=endless), tmp_path / "run", use))


def test_a_group_that_is_given_up_while_it_is_on_its_way_to_the_engine_is_aborted_there(
    config: Config, tmp_path: Path
) -> None:
    given = [[OF_TASK, OF_CLIENT], []]  # the empty answer ends the loop

    async def use(replica: RolloutReplica, run: RunFolder) -> None:
        async def prompts(items: list[int]) -> list[StreamPrompt | None]:
            # The queue has read the prompt when the client takes it back, and the replica has not heard of it yet.
            await replica.abort_groups([OF_CLIENT.number])
            return submitted_prompts(items)

        replica._queue = Handle(take=lambda *_: given.pop(0), serving=lambda *_: None)
        replica._requests._queue = SimpleNamespace(prompts=SimpleNamespace(remote=prompts))
        with ShmPublisher(run.run_id, run.key()) as publisher:
            await replica._take_up(publisher.publish([("w", torch.zeros(2))], Version(0, 1)))
        told = results_of(replica)
        held = threading.Event()
        replica._thread.call(lambda engine: held.wait())
        await replica._take_loop()
        held.set()
        ended = [await told.get() for _ in range(2 * GROUP_SIZE)]
        aborted = {one.request_id for one in ended if one.finish_reason is FinishReason.ABORT}
        assert aborted == {"c0ffee.0/0", "c0ffee.0/1"}

    asyncio.run(with_replica(config, tmp_path / "run", use))
