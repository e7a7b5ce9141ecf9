"""A gateway above a replica whose engine is `torch`: it tells log-probs of prompts, and follows grammars."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from support.engines.bytewise_model import write_bytewise_model
from support.gateway.local_gateway import LocalGateway, local_gateway, until

from streamrl.models.load import load_model
from streamrl.types import Version

LONG: dict[str, Any] = {
    "template": None,
    "finish": write_bytewise_model,
    "longest_prompt": 8000,
    "most": 2000,
    "slots": 4,
}
"""Of a gateway for what agents send: long prompts, and a template and tokens as published models have them."""


@asynccontextmanager
async def torch_gateway(folder: Path, **options: Any) -> AsyncIterator[LocalGateway]:
    """Its replica serves version 0.1."""
    async with local_gateway(folder, ready=False, engine="torch", **options) as gateway:
        # Under the names that they have in memory, as a learner publishes them.
        tensors = [(name, one.detach()) for name, one in load_model(folder / "model", "float32").named_parameters()]
        await gateway.replicas["rollout-0"]._take_up(gateway.publisher.publish(tensors, Version(0, 1)))
        await gateway.actor.serve(0, gateway.handles)
        await until(lambda: gateway.actor._pool.ready)
        yield gateway
