"""A gateway that stands still for too long, suspended or starved: what its replicas give up goes on when it asks."""

from pathlib import Path

import pytest
from support.gateway.local_gateway import Held, events, local_gateway, until

from streamrl.services.rollout import client_requests


@pytest.mark.parametrize("ended", [False, True], ids=["in the middle", "when it had ended unheard"])
async def test_a_stream_goes_on_where_it_was_when_its_gateway_asks_again(
    ended: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with local_gateway(tmp_path, ready=False, most=60, latency_steps=80, step_s=0.002) as gateway:
        await gateway.take_up(1)
        replica = gateway.replicas["rollout-0"]
        handle = Held(replica, "client_updates")
        await gateway.actor.serve(0, {"rollout-0": handle})
        await until(lambda: gateway.actor._pool.ready)
        _, whole = await gateway.complete(max_tokens=60, seed=1)
        body = {"model": "run", "prompt": "1+1=", "max_tokens": 60, "seed": 1, "stream": True}
        headers = {"authorization": f"Bearer {gateway.token()}"}
        async with gateway.http.post(f"{gateway.url}/v1/completions", json=body, headers=headers) as response:
            told = events(response)
            text = (await anext(told))["choices"][0]["text"]
            handle.lets.clear()
            await until(lambda: handle.under_way["client_updates"] == 0)
            caller = replica._client_requests._callers["gateway"]
            if ended:
                await until(lambda: not caller.running)
            monkeypatch.setattr(client_requests, "SILENCE_S", 0.01)
            replica._client_requests._listen(caller)
            await until(lambda: caller.silence is None)
            monkeypatch.setattr(client_requests, "SILENCE_S", 3600.0)
            handle.lets.set()
            async for event in told:
                text += event["choices"][0]["text"] if event != "[DONE]" else ""
        await gateway.idle()
    assert text == whole["choices"][0]["text"]
