"""Each key that names a file or folder is resolved when a run is claimed; the schema says whether one was forgotten."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from streamrl.config import Config
from streamrl.config.loading.full_paths import PATH_KEYS, full_paths
from streamrl.config.schema import fields
from streamrl.config.schema.run import ModelConfig
from streamrl.config.schema.table import Name

NO_PATHS = {
    "runs",  # who claims the folder resolves it
    "reward.function",
    "data.system",
    "model.preset",
    "sandbox.url",
    "ray.address",
    "gateway.host",
    "gateway.names",
    "gateway.path_prefix",
    "environment.name",
    "environment.tools",
    "learner.lora.targets",
    "rollout.server.endpoint",
    "rollout.server.quantization",
    "rollout.server.args",  # those of a server, which starts in the folder where `up` was called
    "data.columns",
}
"""Keys of free text that name no file. Tables whose values are of any type, such as options, are no text."""


def texts(annotation: Any) -> bool:
    """Whether a value may be free text, or hold some."""
    if annotation is Name:
        return False

    def has_text(info: msgspec.inspect.Type) -> bool:
        if isinstance(info, msgspec.inspect.UnionType):
            return any(map(has_text, info.types))
        if isinstance(info, msgspec.inspect.VarTupleType):
            return has_text(info.item_type)
        if isinstance(info, msgspec.inspect.DictType):
            return has_text(info.value_type)
        return isinstance(info, msgspec.inspect.StrType)

    return has_text(msgspec.inspect.type_info(annotation))


def value_of(config: Config, key: str) -> Any:
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name)
    return value


def with_value(table: Any, key: str, value: object) -> Any:
    name, _, rest = key.partition(".")
    return msgspec.structs.replace(table, **{name: with_value(getattr(table, name), rest, value) if rest else value})


def test_each_key_of_free_text_is_resolved_or_is_known_to_name_no_file() -> None:
    free = {leaf.name for leaf in fields.leaves() if texts(leaf.type)}
    assert free == set(PATH_KEYS) | NO_PATHS
    assert not set(PATH_KEYS) & NO_PATHS


@pytest.mark.parametrize("key", PATH_KEYS)
def test_a_relative_path_begins_at_the_current_folder_and_a_full_one_stays(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    found = {}
    for given in ("some/rows.jsonl", "~/rows.jsonl", "/full/rows.jsonl"):
        placed = full_paths(with_value(Config(), key, given))
        found[given] = value_of(placed, key)
        assert full_paths(placed) == placed
    assert found == {
        "some/rows.jsonl": f"{tmp_path}/some/rows.jsonl",
        "~/rows.jsonl": f"{tmp_path}/home/rows.jsonl",
        "/full/rows.jsonl": "/full/rows.jsonl",
    }


def test_what_is_no_path_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = Config(model=ModelConfig(preset="tiny-qwen3"))
    for key, value in {
        "task.name": "my_tasks:Task",
        "data.train": ("hf:own/er#train", "/rows#train"),
        "data.eval": {"one": "hf:own/er#test"},
        "checkpoint.folder": "s3://bucket/prefix",
        "weights.folder": "gs://bucket/prefix",
    }.items():
        config = with_value(config, key, value)
    assert full_paths(config) == config


def test_a_link_is_kept_as_the_link_that_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python of an environment is one, and knows its environment by its own place."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "python").symlink_to("/usr/bin/env")
    placed = full_paths(with_value(Config(), "rollout.server.python", "python"))
    assert placed.rollout.server.python == f"{tmp_path}/python"
