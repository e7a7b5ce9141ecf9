"""How many replicas a live run may be scaled to, and which of them come and go."""

from pathlib import Path

import pytest

from services.replicas import changes
from services.scaling import replicas_asked
from streamrl.config.resources import Estimate, growth
from streamrl.errors import ConfigError, ResourceError

RUN = '[model]\npreset = "tiny-qwen3"\n[rollout]\nengine = "scripted"\n'


@pytest.fixture
def config_path(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(RUN)
    return path


@pytest.mark.parametrize(("now", "asked"), [(1, "2"), (2, "1"), (2, 2)])
def test_a_number_that_the_configuration_could_have_is_taken(config_path: Path, now: int, asked: object) -> None:
    assert replicas_asked(config_path, now, {"rollout": asked}) == int(str(asked))


@pytest.mark.parametrize("asked", ["0", "-1", "two", "1.5", ""])
def test_a_number_that_it_could_not_have_is_refused_by_its_key(config_path: Path, asked: str) -> None:
    with pytest.raises(ConfigError, match=r"rollout\.replicas"):
        replicas_asked(config_path, 1, {"rollout": asked})


def test_more_than_the_machine_has_memory_for_is_refused(config_path: Path) -> None:
    config_path.write_text(f"{RUN}[queue]\ndisk_budget = {2**50}\n[observe]\nlog_bytes = {2**50}\n")
    with pytest.raises(ResourceError, match=r"rollout\.replicas: the run needs about .* of memory free"):
        replicas_asked(config_path, 1, {"rollout": "1000000"})


@pytest.mark.parametrize("asked", [{"learner": "2"}, {"rollout": "2", "queue": "2"}, {}])
def test_what_cannot_be_scaled_is_named_with_what_can(config_path: Path, asked: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="cannot be scaled; what can: rollout"):
        replicas_asked(config_path, 1, asked)


def test_a_rule_between_keys_holds_for_the_new_number_too(config_path: Path) -> None:
    config_path.write_text(
        RUN.replace("scripted", "vllm") + '[rollout.server]\nendpoint = "http://127.0.0.1:1"\n[learner]\nlead = 1\n'
    )
    with pytest.raises(ConfigError, match="endpoint"):
        replicas_asked(config_path, 1, {"rollout": "2"})


def test_only_what_is_more_counts_against_what_the_machine_has_left() -> None:
    before = Estimate(memory={"a": 5, "b": 7}, shared_memory=10, disk=3)
    after = Estimate(memory={"a": 9, "b": 6, "c": 2}, shared_memory=8, disk=4)
    assert growth(before, after) == Estimate(memory={"a": 4, "c": 2}, shared_memory=0, disk=1)


@pytest.mark.parametrize(
    ("wanted", "kept", "leaving", "joins", "leaves"),
    [
        (2, [], [], [0, 1], []),
        (3, [0, 1], [], [2], []),
        (1, [0, 1, 2], [], [], [1, 2]),
        (1, [0, 1, 2], [2], [], [1]),
        (3, [0, 1, 2], [1, 2], [], []),
        (3, [0, 2], [2], [1], []),
    ],
)
def test_the_highest_numbers_leave_and_one_that_leaves_is_not_made_twice(
    wanted: int, kept: list[int], leaving: list[int], joins: list[int], leaves: list[int]
) -> None:
    assert changes(wanted, kept, leaving) == (joins, leaves)
