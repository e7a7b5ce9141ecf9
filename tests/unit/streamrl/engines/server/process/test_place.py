"""Where a server's Python is looked for, and who is told before anything starts that there is none."""

from pathlib import Path

import msgspec
import pytest

from streamrl.config import Config
from streamrl.engines.server.process.place import engine_python
from streamrl.errors import ConfigError
from streamrl.services.launch.preflight import check


def config(**server: object) -> Config:
    tree = {"model": {"preset": "tiny-qwen3"}, "rollout": {"engine": "vllm", "server": server}}
    return msgspec.convert(tree, Config)


def test_the_environment_lies_beside_the_folder_that_up_was_called_in(tmp_path: Path) -> None:
    python = tmp_path / ".venvs/vllm/bin/python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert engine_python(config(), tmp_path) == python


def test_an_environment_of_ones_own_is_named_from_there_or_from_the_root(tmp_path: Path) -> None:
    (tmp_path / "python").touch()
    assert engine_python(config(python="python"), tmp_path) == tmp_path / "python"
    assert engine_python(config(python=str(tmp_path / "python")), Path("/elsewhere")) == tmp_path / "python"


def test_up_says_before_anything_starts_that_the_environment_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMRL_IMPORT_PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r'the engine "vllm" needs .*\.venvs/vllm/bin/python, .* run `make engines`'):
        check(config())
    with pytest.raises(ConfigError, match="name another, or leave the key out"):
        check(config(python="nowhere"))


def test_a_server_that_is_there_already_needs_no_environment_here(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMRL_IMPORT_PATH", str(tmp_path))
    check(config(endpoint="http://127.0.0.1:8000"))
