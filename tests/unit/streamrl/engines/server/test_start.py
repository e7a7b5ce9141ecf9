"""A server from its start to its end, as a replica makes it: a real process that speaks vLLM's contract."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from fake_vllm_program import write_program
from support.engines.fake_server import token

from streamrl.config import Config
from streamrl.config.schema.run import ModelConfig
from streamrl.engines.build import UNPUBLISHED
from streamrl.engines.server.build import build_server_engine
from streamrl.engines.server.engine import ServerEngine
from streamrl.engines.server.process.place import ServerPlace
from streamrl.errors import ConfigError, DeadlineError, ProcessDiedError, StreamRLError
from streamrl.models.load import prepare_model_folder
from streamrl.types import GenerationRequest, SamplingParams
from streamrl.weights.folder import SHM_ROOT

PREFIX = "streamrl-test-start"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_model_folder(ModelConfig(preset="tiny-qwen3"), 0, tmp_path_factory.mktemp("model") / "model")


def started(program: Path, model: Path, start_s: float = 60.0) -> ServerEngine:
    tree = {
        "model": {"path": str(model)},
        "rollout": {"engine": "vllm", "server": {"python": str(program)}},
        "deadlines": {"start_s": start_s},
    }
    return build_server_engine(msgspec.convert(tree, Config), model, 64, ServerPlace(Path("/"), PREFIX), UNPUBLISHED)


def test_a_server_is_started_answers_and_leaves_nothing(tmp_path: Path, model: Path) -> None:
    engine = started(write_program(tmp_path), model)
    keeper = engine._server._process.session
    try:
        engine.submit([GenerationRequest("one", np.array([1], np.int32), 0, SamplingParams(max_new_tokens=4), ())])
        ended = []
        while not ended:
            ended = engine.step()
    finally:
        engine.close()
    assert ended[0].token_ids.tolist() == [token(i) for i in range(4)]
    assert ended[0].version_spans[0].version == UNPUBLISHED
    assert not Path(f"/proc/{keeper}").exists()
    assert not list(SHM_ROOT.glob(f"{PREFIX}-*"))


@pytest.mark.parametrize(
    ("program", "start_s", "error", "words"),
    [
        ({"version": "0.31.0"}, 60.0, ConfigError, r"this is vLLM '0\.31\.0', and 0\.32 is spoken here"),
        (
            {"paused": True},
            1.0,
            DeadlineError,
            r"its start \(deadlines\.start_s\) took longer than 0\.9 s; its proc",
        ),
        ({"last_words": "no such quantization"}, 60.0, ProcessDiedError, r"exit code 3; .*\n  no such quantization"),
    ],
    ids=["unknown release", "never ready", "ends"],
)
def test_a_server_that_cannot_be_used_is_ended_and_it_is_said_why(
    program: dict[str, str], start_s: float, error: type[StreamRLError], words: str, tmp_path: Path, model: Path
) -> None:
    with pytest.raises(error, match=words) as caught:
        started(write_program(tmp_path, **program), model, start_s)
    assert type(caught.value) is error
    assert not list(SHM_ROOT.glob(f"{PREFIX}-*"))
