"""Makes the engine that a configuration names, over the model in a folder.

The one place that knows which engines there are. Imports are inside the branches: the scripted engine needs no torch.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from streamrl.config import Config
from streamrl.engines.base import Engine
from streamrl.engines.server.process.place import ServerPlace
from streamrl.scheduling.replica_names import replica_name
from streamrl.types import Version

if TYPE_CHECKING:
    import torch

UNPUBLISHED = Version(-1, -1)
"""The version of an engine that has not been given any; older than every published one."""


def build_engine(
    config: Config, model_folder: Path, max_length: int, place: ServerPlace | None = None, replica: str = ""
) -> Engine:
    """An engine with the folder's weights, under the version UNPUBLISHED.

    max_length: tokens of the longest prompt and completion together. place: where a server is started from, the current
    folder when None. replica: whose engine it is, "" for nobody's. Call it in the thread that will step the engine: it
    sets that thread's number of torch threads. Raises ConfigError for a model that the engine cannot serve, for a KV
    cache that is too small for one request, and for a server that is not installed; ComponentError when this machine's
    arithmetic breaks the promise of `rollout.deterministic = true`, or a server does not start.
    """
    if config.rollout.engine == "scripted":
        return _scripted(config, model_folder, max_length, replica)
    if config.rollout.is_server:
        return _server(config, model_folder, max_length, place or ServerPlace(Path.cwd(), "streamrl"))
    return _torch(config, model_folder, max_length)


def build_evaluation_engine(config: Config, model_folder: Path, max_length: int) -> Engine:
    """As `build_engine`, the engine for one pinned version beside the stream. A server has one version at a time: its
    model is evaluated by the torch engine."""
    if not config.rollout.is_server:
        return build_engine(config, model_folder, max_length)
    rollout = msgspec.structs.replace(config.rollout, engine="torch", deterministic=False)
    return _torch(msgspec.structs.replace(config, rollout=rollout), model_folder, max_length)


def _server(config: Config, model_folder: Path, max_length: int, place: ServerPlace) -> Engine:
    from streamrl.engines.server.build import build_server_engine

    return build_server_engine(config, model_folder, max_length, place, UNPUBLISHED)


def _torch(config: Config, model_folder: Path, max_length: int) -> Engine:
    import torch

    from streamrl.engines.torch.engine import TorchEngine
    from streamrl.models.grammars import Grammars
    from streamrl.models.tokenizer import load_tokenizer

    rollout = config.rollout
    torch.set_num_threads(rollout.threads)
    model, tensors = _loaded(model_folder, config.model.dtype)
    text = (model if tensors is not None else model.config).get_text_config()
    engine = TorchEngine(
        model,
        UNPUBLISHED,
        slots=rollout.slots,
        max_length=max_length,
        kv_bytes=rollout.kv_bytes,
        tensors=tensors,
        device=rollout.device,
        deterministic=rollout.batch_invariant,
        record_routes=config.learner.router_replay,
        grammars=Grammars(lambda: load_tokenizer(model_folder), text.vocab_size),
    )
    if rollout.batch_invariant:
        engine.self_test(required=rollout.deterministic is True)
    return engine


def _loaded(folder: Path, dtype: str) -> tuple[Any, "Mapping[str, torch.Tensor] | None"]:
    """A configuration and its weights where the engine computes with them by itself, else the model and None."""
    from streamrl.engines.torch.families import describe, tensor_shapes
    from streamrl.models.plain_weights import read_plain

    plain = read_plain(folder, dtype, lambda config: tensor_shapes(describe(config)))
    if plain is not None:
        return plain
    # Here and not above: what it imports takes as long as all else of an engine's start.
    from streamrl.models.load import load_model

    return load_model(folder, dtype), None


def _scripted(config: Config, model_folder: Path, max_length: int, replica: str) -> Engine:
    from streamrl.engines.scripted import ScriptedEngine
    from streamrl.models.tokenizer import load_tokenizer

    tokenizer, script = load_tokenizer(model_folder), config.rollout.scripted
    if script.biased_replica is not None and replica != replica_name(script.biased_replica):
        script = msgspec.structs.replace(script, logprob_bias=0.0)
    return ScriptedEngine(
        script,
        slots=config.rollout.slots,
        vocab_size=tokenizer.vocab_size,
        eos_token_id=tokenizer.eos_token_ids[0],
        version=UNPUBLISHED,
        context_length=max_length,
    )
