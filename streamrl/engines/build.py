"""Makes the engine that a configuration names, over the model in a folder.

The one place that knows which engines there are. Imports are inside the branches: the scripted engine needs no torch.
"""

from pathlib import Path

from streamrl.config import Config
from streamrl.engines.base import Engine
from streamrl.types import Version

UNPUBLISHED = Version(-1, -1)
"""The version of an engine that has not been given any; older than every published one."""


def build_engine(config: Config, model_folder: Path, max_length: int) -> Engine:
    """An engine with the folder's weights, under the version UNPUBLISHED.

    max_length: tokens of the longest prompt and completion together. Call it in the thread that will step the
    engine: it sets that thread's number of torch threads. Raises ConfigError for a model that the engine cannot
    serve, and for a KV cache that is too small for one request; ComponentError when this machine's arithmetic
    breaks the promise of `rollout.deterministic`.
    """
    if config.rollout.engine == "scripted":
        return _scripted(config, model_folder, max_length)
    return _torch(config, model_folder, max_length)


def _torch(config: Config, model_folder: Path, max_length: int) -> Engine:
    import torch

    from streamrl.engines.torch.engine import TorchEngine
    from streamrl.models.load import load_model

    rollout = config.rollout
    torch.set_num_threads(rollout.threads)
    engine = TorchEngine(
        load_model(model_folder, config.model.dtype),
        UNPUBLISHED,
        slots=rollout.slots,
        max_length=max_length,
        kv_bytes=rollout.kv_bytes,
        device=rollout.device,
        deterministic=rollout.deterministic,
    )
    if rollout.deterministic:
        engine.self_test()
    return engine


def _scripted(config: Config, model_folder: Path, max_length: int) -> Engine:
    from streamrl.engines.scripted import ScriptedEngine
    from streamrl.models.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(model_folder)
    return ScriptedEngine(
        config.rollout.scripted,
        slots=config.rollout.slots,
        vocab_size=tokenizer.vocab_size,
        eos_token_id=tokenizer.eos_token_ids[0],
        version=UNPUBLISHED,
        context_length=max_length,
    )
