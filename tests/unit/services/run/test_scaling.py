"""What a live run may be scaled to, and which replicas come and go."""

from pathlib import Path

import pytest

from streamrl.config import Config
from streamrl.config.estimates.resources import Estimate, growth
from streamrl.config.schema.rollout import RolloutConfig
from streamrl.config.schema.run import RewardConfig
from streamrl.errors import ConfigError, ResourceError
from streamrl.services.controller.replicas import changes
from streamrl.services.run.folder import RunRecord
from streamrl.services.run.scaling import KEYS, outcome, remembered, requested_sizes, sizes

NOW = {"rollout": 1, "reward": 1}
RUN = '[model]\npreset = "tiny-qwen3"\n[rollout]\nengine = "scripted"\n'


@pytest.fixture
def config_path(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(RUN)
    return path


@pytest.mark.parametrize(
    ("asked", "sizes"),
    [
        ({"rollout": "2"}, {"rollout": 2}),
        ({"rollout": 2}, {"rollout": 2}),
        ({"reward": "3"}, {"reward": 3}),
        ({"rollout": "1", "reward": "1"}, {"rollout": 1, "reward": 1}),
    ],
)
def test_numbers_that_the_configuration_could_have_are_taken(
    config_path: Path, asked: dict[str, object], sizes: dict[str, int]
) -> None:
    assert requested_sizes(config_path, NOW, asked) == sizes


@pytest.mark.parametrize("part", list(KEYS))
@pytest.mark.parametrize("asked", ["0", "-1", "two", "1.5", "", None, [2], {}])
def test_a_number_that_it_could_not_have_is_refused_by_its_key(config_path: Path, part: str, asked: object) -> None:
    with pytest.raises(ConfigError, match=KEYS[part].replace(".", r"\.")):
        requested_sizes(config_path, NOW, {part: asked})


@pytest.mark.parametrize(("part", "key"), [("rollout", "queue.disk_budget"), ("reward", "queue.segment_bytes")])
def test_more_than_the_rest_of_the_configuration_has_room_for_is_refused_by_what_is_too_small(
    config_path: Path, part: str, key: str
) -> None:
    with pytest.raises(ConfigError, match=key):
        requested_sizes(config_path, NOW, {part: "1000000"})


@pytest.mark.parametrize("part", list(KEYS))
def test_more_than_the_machine_has_memory_for_is_refused(config_path: Path, part: str) -> None:
    queue = f"[queue]\ndisk_budget = {2**50}\nsegment_bytes = {2**33}\n"
    config_path.write_text(f"{RUN}{queue}[observe]\nlog_bytes = {2**50}\n")
    with pytest.raises(ResourceError, match=rf"{KEYS[part]}: the run needs about .* of memory free"):
        requested_sizes(config_path, NOW, {part: "20000"})


def test_what_is_asked_for_together_is_weighed_together(config_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"reward\.workers"):
        requested_sizes(config_path, NOW, {"rollout": "2", "reward": "0"})


@pytest.mark.parametrize("asked", [{"learner": "2"}, {"rollout": "2", "queue": "2"}, {}])
def test_what_cannot_be_scaled_is_named_with_what_can(config_path: Path, asked: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="cannot be scaled; what can: rollout, reward"):
        requested_sizes(config_path, NOW, asked)


def test_a_run_remembers_what_it_was_scaled_to_and_nothing_else() -> None:
    config = Config(rollout=RolloutConfig(replicas=2), reward=RewardConfig(workers=5))
    record = RunRecord(run_id="x", name="x", created_ns=0)
    assert sizes(record, config) == {"rollout": 2, "reward": 5}
    record = remembered(record, {"reward": 3})
    assert (record.replicas, record.reward_workers) == (None, 3)
    assert sizes(remembered(record, {"rollout": 4}), config) == {"rollout": 4, "reward": 3}


def test_the_outcome_says_what_it_was_and_is() -> None:
    assert outcome(NOW, {"reward": 3}) == {"reward": 3, "before": 1}
    assert outcome(NOW, {"rollout": 2, "reward": 3}) == {
        "rollout": 2,
        "reward": 3,
        "before": {"rollout": 1, "reward": 1},
    }


def test_a_rule_between_keys_holds_for_the_new_number_too(config_path: Path) -> None:
    config_path.write_text(
        RUN.replace("scripted", "vllm") + '[rollout.server]\nendpoint = "http://127.0.0.1:1"\n[learner]\nlead = 1\n'
    )
    with pytest.raises(ConfigError, match="endpoint"):
        requested_sizes(config_path, NOW, {"rollout": "2"})


def test_a_number_beyond_the_limits_of_autoscaling_is_refused_with_them(config_path: Path) -> None:
    config_path.write_text(f"{RUN}[rollout.autoscaling]\nmax_replicas = 3\n")
    assert requested_sizes(config_path, NOW, {"rollout": "3"}) == {"rollout": 3}
    with pytest.raises(ConfigError, match="autoscaling keeps the number from 1 to 3"):
        requested_sizes(config_path, NOW, {"rollout": "4"})


def test_the_number_is_left_to_autoscaling_where_there_is_one(config_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"rollout=auto needs autoscaling, .*max_replicas is not set; give a number"):
        requested_sizes(config_path, NOW, {"rollout": "auto"})
    config_path.write_text(f"{RUN}[rollout.autoscaling]\nmax_replicas = 3\n")
    assert requested_sizes(config_path, NOW, {"rollout": "auto", "reward": "2"}) == {"rollout": None, "reward": 2}


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
