"""What is due with which step."""

from typing import Any

import msgspec
import pytest

from streamrl.config import Config
from streamrl.services.actors.step_schedule import target_reached


@pytest.mark.parametrize(
    ("target", "score", "reached"),
    [(0.5, 0.5, True), (0.5, 0.4, False), (0.0, 1.0, False), (0.5, None, False), (0.0, None, False)],
    ids=["reached", "below", "no target", "nothing could be scored", "neither"],
)
def test_a_target_is_reached_by_a_score_alone(target: float, score: float | None, reached: bool) -> None:
    told: dict[str, Any] = {"eval": {"target_score": target}}
    assert target_reached(msgspec.convert(told, Config), score) is reached
