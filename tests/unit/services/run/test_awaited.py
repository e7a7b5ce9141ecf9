"""When a detached command may return."""

from typing import Any

import pytest

from streamrl.clock import VirtualClock
from streamrl.config import Config
from streamrl.config.schema.run import DeadlineConfig, GatewayConfig
from streamrl.services.run.awaited import GATEWAY_READY, Awaited

STEP: dict[str, Any] = {"kind": "step", "step": 1}
READY: dict[str, Any] = {"kind": GATEWAY_READY, "url": "http://127.0.0.1:8000"}
LIMIT_S = 7.0


def awaited(clock: VirtualClock, *, gateway: bool) -> Awaited:
    deadlines = DeadlineConfig(start_s=LIMIT_S)
    return Awaited(Config(gateway=GatewayConfig(enabled=gateway), deadlines=deadlines), clock)


@pytest.mark.parametrize("event", [STEP, {"kind": "warmup"}, {"kind": "eval"}, {"kind": "phase", "name": "warm-up"}])
def test_without_a_gateway_the_first_sign_that_parts_work_is_enough(event: dict[str, Any]) -> None:
    one = awaited(VirtualClock(), gateway=False)
    assert not any(one.is_over(early) for early in (None, {"kind": "phase", "name": "ray"}, {"kind": "notice"}))
    assert one.is_over(event)


@pytest.mark.parametrize("events", [(STEP, READY), (READY, STEP)])
def test_with_a_gateway_both_are_needed_in_whatever_order(events: tuple[dict[str, Any], ...]) -> None:
    one = awaited(VirtualClock(), gateway=True)
    first, second = events
    assert not one.is_over(first)
    assert not one.is_over({"kind": "gateway", "url": "http://127.0.0.1:8000"})
    assert one.is_over(second)
    assert one.is_ready


def test_a_gateway_that_is_not_ready_in_time_is_waited_for_no_longer() -> None:
    clock = VirtualClock()
    one = awaited(clock, gateway=True)
    clock.advance(100.0)  # before the run is up, no time counts
    assert not one.is_over(STEP)
    clock.advance(LIMIT_S - 0.5)
    assert not one.is_over(None)
    clock.advance(0.5)
    assert one.is_over(None)
    assert not one.is_ready
