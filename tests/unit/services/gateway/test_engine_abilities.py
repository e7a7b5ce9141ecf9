"""What the gateway holds an engine to be able to."""

from pathlib import Path

from support.engines.bytewise_model import write_bytewise_model

from streamrl.config.schema.run import ModelConfig
from streamrl.models.load import prepare_model_folder
from streamrl.models.tokenizer import load_tokenizer
from streamrl.services.gateway.engine_limits import follows_grammars


def test_servers_follow_grammars_over_bytes_and_the_torch_engine_over_letters_too(tmp_path: Path) -> None:
    letters, of_bytes = tmp_path / "letters", tmp_path / "bytes"
    prepare_model_folder(ModelConfig(preset="tiny-qwen3"), 0, letters)
    of_bytes.mkdir()
    write_bytewise_model(of_bytes)
    found = {
        engine: tuple(follows_grammars(engine, load_tokenizer(folder)) for folder in (letters, of_bytes))
        for engine in ("torch", "vllm", "sglang", "scripted")
    }
    assert found == {
        "torch": (True, True),
        "vllm": (False, True),
        "sglang": (False, True),
        "scripted": (False, False),
    }
